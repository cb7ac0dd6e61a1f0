// Memory that a recorded step sets to zero before an op, in fewer nodes.
#pragma once

struct CUgraph_st;

namespace ht {

// cuDNN's convolutions with sums have their outputs set to zero by memset nodes, one after another, and each of these
// holds the graph up as a kernel would. This makes one kernel of every chain of small memsets; a single one stays.
void merge_memsets(CUgraph_st* graph);

}  // namespace ht
