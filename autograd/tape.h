// The tape: ops in call order, which is a topological order already. Backward is one reverse loop.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "autograd/var.h"

namespace ht {

class Tape {
 public:
  // Where an input came from: an earlier node, a leaf, or neither (no gradient wanted).
  struct Edge {
    int node = -1;
    std::shared_ptr<VarState> leaf;
    bool dropped = false;  // the op has not kept this input: the earlier node makes it again
    bool wanted() const { return node >= 0 || leaf; }
  };
  struct Node {
    std::unique_ptr<Op> op;  // null once freed
    std::vector<Edge> inputs;
    TensorSpec out;
    Device device;
    VarState* var = nullptr;  // the Var that holds the output; null once that is gone
    int uses = 0;             // that Var and later nodes that refer to it; at 0 it is freed
  };

  // This thread's tape, made when there is none. The thread refers to it weakly; the non-leaf Vars own it.
  static std::shared_ptr<Tape> current();
  static Edge edge_to(const Var& input);

  // Appends the node that made `out` and tells it the index.
  void record(std::unique_ptr<Op> op, std::vector<Edge> inputs, VarState& out);
  void backward(int root, Tensor seed, bool retain_graph);
  // A Var of this node is gone.
  void release(int node);

  std::span<const Node> nodes() const { return nodes_; }

 private:
  void check_walk(int root) const;
  void walk(int root, Tensor seed, bool retain_graph);
  void sweep(int root);
  void restore_inputs(Node& node);
  Grads run_node(Node& node, Tensor dy);
  void free_unused(int node);
  void trim();
  void compact();

  std::vector<Node> nodes_;
  size_t compact_at_ = 64;  // the size at which freed nodes are looked for next
};

// Adds a contribution to a gradient slot: the first is kept as it is, later ones make a half slot FP32 and add.
void accumulate(Tensor& slot, Tensor grad);

}  // namespace ht
