#include "autograd/tape.h"

#include "core/arithmetic.h"

namespace ht {

namespace {
thread_local std::weak_ptr<Tape> thread_tape;
}

std::shared_ptr<Tape> Tape::current() {
  std::shared_ptr<Tape> tape = thread_tape.lock();
  if (!tape) thread_tape = tape = std::make_shared<Tape>();
  return tape;
}

Tape::Edge Tape::edge_to(const Var& input) {
  if (!input.requires_grad()) return {};
  if (input.is_leaf()) return {-1, input.state()};
  return {input.state()->node, nullptr};
}

int Tape::record(std::unique_ptr<Op> op, std::vector<Edge> inputs, const Tensor& out) {
  for (const Edge& e : inputs)
    if (e.node >= 0) ++nodes_[static_cast<size_t>(e.node)].uses;
  nodes_.push_back({std::move(op), std::move(inputs), out.spec(), out.device(), 1});
  return static_cast<int>(nodes_.size()) - 1;
}

void accumulate(Tensor& slot, Tensor grad) {
  if (!slot.defined()) {
    slot = grad.unique() ? std::move(grad) : grad.clone();  // a shared buffer could change under the slot
    return;
  }
  if (is_half(slot.dtype())) slot = slot.to(DType::f32);
  add_into(slot, grad);
}

// Every node that the gradient will reach must still be there: found out before anything is changed.
void Tape::check_walk(int root) const {
  std::vector<bool> reached(static_cast<size_t>(root) + 1);
  reached[static_cast<size_t>(root)] = true;
  for (int i = root; i >= 0; --i) {
    if (!reached[static_cast<size_t>(i)]) continue;
    const Node& node = nodes_[static_cast<size_t>(i)];
    check(node.op != nullptr, "backward: node ", i, " (output ", node.out.shape, " ", node.out.dtype,
          ") was freed by an earlier backward; pass retain_graph = true to the first one, or run forward again");
    for (const Edge& e : node.inputs)
      if (e.node >= 0) reached[static_cast<size_t>(e.node)] = true;
  }
}

Grads Tape::run_node(Node& node, Tensor dy) {
  std::vector<bool> needs(node.inputs.size());
  for (size_t k = 0; k < needs.size(); ++k) needs[k] = node.inputs[k].wanted();
  try {
    Grads grads = node.op->backward(Context::of(node.device), dy.to(node.out.dtype), needs);
    check(grads.size() == needs.size(), "returned ", grads.size(), " gradients for ", needs.size(), " inputs");
    return grads;
  } catch (const Error& e) {
    throw Error(str("backward of ", node.op->name(), ": ", e.what()));
  }
}

void Tape::backward(int root, Tensor seed, bool retain_graph) {
  check_walk(root);
  std::vector<Tensor> slots(static_cast<size_t>(root) + 1);
  slots.back() = std::move(seed);
  for (int i = root; i >= 0; --i) {
    Tensor dy = std::move(slots[static_cast<size_t>(i)]);
    if (!dy.defined()) continue;
    Node& node = nodes_[static_cast<size_t>(i)];
    Grads grads = run_node(node, std::move(dy));
    if (!retain_graph) node.op.reset();  // frees what it saved before the leaves' slots grow
    for (size_t k = 0; k < grads.size(); ++k) {
      const Edge& e = node.inputs[k];
      if (e.wanted() && grads[k].defined())
        accumulate(e.leaf ? e.leaf->grad : slots[static_cast<size_t>(e.node)], std::move(grads[k]));
      if (!retain_graph && e.node >= 0) --nodes_[static_cast<size_t>(e.node)].uses;
    }
    if (!retain_graph) node.inputs.clear();
  }
  if (retain_graph) return;
  for (int i = root; i >= 0; --i) free_unused(i);  // branches that the gradient did not reach
  trim();
  // With nothing left to walk, the next forward starts an empty tape even while a Var still holds this one.
  bool live = false;
  for (const Node& node : nodes_) live |= node.op != nullptr;
  if (!live && thread_tape.lock().get() == this) thread_tape.reset();
}

void Tape::release(int node) {
  --nodes_[static_cast<size_t>(node)].uses;
  free_unused(node);
  trim();
}

// Frees a node that nothing refers to and, with a worklist in place of recursion, what only it referred to.
void Tape::free_unused(int node) {
  std::vector<int> work{node};
  while (!work.empty()) {
    Node& n = nodes_[static_cast<size_t>(work.back())];
    work.pop_back();
    if (n.uses > 0 || !n.op) continue;
    const auto op = std::move(n.op);
    const auto inputs = std::move(n.inputs);
    n.inputs.clear();
    for (const Edge& e : inputs) {
      if (e.node < 0) continue;
      --nodes_[static_cast<size_t>(e.node)].uses;
      work.push_back(e.node);
    }
  }
}

void Tape::trim() {
  while (!nodes_.empty() && nodes_.back().uses == 0 && !nodes_.back().op) nodes_.pop_back();
}

}  // namespace ht
