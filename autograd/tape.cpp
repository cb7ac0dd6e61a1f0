#include "autograd/tape.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "core/range.h"
#include "core/tuning.h"

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

namespace {
// Lets the op drop what earlier nodes can make again.
void drop_inputs(std::span<const Tape::Node> nodes, Op& op, std::vector<Tape::Edge>& inputs) {
  for (size_t k = 0; k < inputs.size(); ++k) {
    Tape::Edge& e = inputs[k];
    const Op* from = e.node >= 0 ? nodes[static_cast<size_t>(e.node)].op.get() : nullptr;
    e.dropped = from && from->recomputes() && op.drop_input(k);
  }
}
}  // namespace

void Tape::record(std::unique_ptr<Op> op, std::vector<Edge> inputs, VarState& out) {
  for (const Edge& e : inputs)
    if (e.node >= 0) ++nodes_[static_cast<size_t>(e.node)].uses;
  if (memory_mode() == MemoryMode::low) drop_inputs(nodes_, *op, inputs);
  nodes_.push_back({std::move(op), std::move(inputs), out.value.spec(), out.value.device(), &out, 1});
  out.node = static_cast<int>(nodes_.size()) - 1;
}

void accumulate(Tensor& slot, Tensor grad) {
  if (!slot.defined()) {
    slot = grad.unique() ? std::move(grad) : grad.clone();  // a shared buffer could change under the slot
    return;
  }
  Context::of(slot.device()).join();  // either may still be written beside
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

// An earlier node is walked later, so it is still there.
void Tape::restore_inputs(Node& node) {
  for (size_t k = 0; k < node.inputs.size(); ++k) {
    if (!node.inputs[k].dropped) continue;
    Op& from = *nodes_[static_cast<size_t>(node.inputs[k].node)].op;
    const Range range(from.name(), "recompute", &from);
    node.op->restore_input(k, from.recompute(Context::of(node.device)));
  }
}

Grads Tape::run_node(Node& node, Tensor dy) {
  std::vector<bool> needs(node.inputs.size());
  for (size_t k = 0; k < needs.size(); ++k) needs[k] = node.inputs[k].wanted();
  const Range range(node.op->name(), "backward", node.op.get());
  try {
    restore_inputs(node);
    Grads grads = node.op->backward(Context::of(node.device), dy.to(node.out.dtype), needs);
    range.touches({&dy, 1});
    range.touches(grads);
    check(grads.size() == needs.size(), "returned ", grads.size(), " gradients for ", needs.size(), " inputs");
    for (size_t k = 0; k < needs.size(); ++k) {
      if (!needs[k] || !grads[k].defined()) continue;
      const Edge& e = node.inputs[k];
      const Shape& shape = e.leaf ? e.leaf->value.shape() : nodes_[static_cast<size_t>(e.node)].out.shape;
      check(grads[k].shape() == shape && is_floating(grads[k].dtype()), "the gradient of input ", k,
            " does not fit its shape ", shape, " (", Named{"grad", grads[k]}, ")");
    }
    if (InputHook* hook = input_hook()) hook->gradients(*node.op, dy, grads);
    return grads;
  } catch (const Error& e) {
    throw Error(str("backward of ", node.op->name(), ": ", e.what()));
  }
}

void Tape::backward(int root, Tensor seed, bool retain_graph) {
  check_walk(root);
  const Device device = seed.device();
  try {
    walk(root, std::move(seed), retain_graph);
  } catch (...) {
    Context::of(device).join();
    if (!retain_graph) sweep(root);  // half a graph is of no use, and its saved tensors are large
    throw;
  }
  Context::of(device).join();
  if (retain_graph) return;
  sweep(root);
  // With nothing left to walk, the next forward starts an empty tape even while a Var still holds this one.
  bool live = false;
  for (const Node& node : nodes_) live |= node.op != nullptr;
  if (!live && thread_tape.lock().get() == this) thread_tape.reset();
}

void Tape::walk(int root, Tensor seed, bool retain_graph) {
  std::vector<Tensor> slots(static_cast<size_t>(root) + 1);
  slots.back() = std::move(seed);
  for (int i = root; i >= 0; --i) {
    Tensor dy = std::move(slots[static_cast<size_t>(i)]);
    if (!dy.defined()) continue;
    Node& node = nodes_[static_cast<size_t>(i)];
    Grads grads = run_node(node, std::move(dy));
    if (!retain_graph)
      node.op.reset();  // frees what it saved before the leaves' slots grow
    else
      for (size_t k = 0; k < node.inputs.size(); ++k)
        if (node.inputs[k].dropped) node.op->drop_input(k);
    for (size_t k = 0; k < grads.size(); ++k) {
      const Edge& e = node.inputs[k];
      if (e.wanted() && grads[k].defined()) {
        accumulate(e.leaf ? e.leaf->grad : slots[static_cast<size_t>(e.node)], std::move(grads[k]));
        if (e.leaf)
          if (const auto watcher = e.leaf->watcher.lock()) watcher->written(*e.leaf);
      }
      if (!retain_graph && e.node >= 0) --nodes_[static_cast<size_t>(e.node)].uses;
    }
    if (!retain_graph) node.inputs.clear();
  }
}

// After a walk: frees the branches that the gradient did not reach.
void Tape::sweep(int root) {
  for (int i = root; i >= 0; --i) free_unused(i);
  trim();
}

void Tape::release(int node) {
  nodes_[static_cast<size_t>(node)].var = nullptr;
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
  if (nodes_.size() >= compact_at_) compact();
}

// Drops freed nodes between live ones, as a Var that outlives its iteration leaves them, and renumbers the rest. The
// next look is at twice the size that is left, so that its cost a node stays constant.
void Tape::compact() {
  std::vector<int> moved(nodes_.size(), -1);
  size_t to = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].uses == 0 && !nodes_[i].op) continue;
    if (i != to) nodes_[to] = std::move(nodes_[i]);
    for (Edge& e : nodes_[to].inputs)
      if (e.node >= 0) e.node = moved[static_cast<size_t>(e.node)];
    if (nodes_[to].var) nodes_[to].var->node = static_cast<int>(to);
    moved[i] = static_cast<int>(to++);
  }
  nodes_.erase(nodes_.begin() + static_cast<int64_t>(to), nodes_.end());
  compact_at_ = std::max<size_t>(64, 2 * to);
}

}  // namespace ht
