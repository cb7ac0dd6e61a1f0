#include "core/cudnn_graph.h"

#include <array>

#include "core/cudnn_backend.h"

namespace ht {

namespace {
cudnnDataType_t dnn_type(DType t) {
  switch (t) {
    case DType::f64:
      return CUDNN_DATA_DOUBLE;
    case DType::f32:
      return CUDNN_DATA_FLOAT;
    case DType::f16:
      return CUDNN_DATA_HALF;
    case DType::bf16:
      return CUDNN_DATA_BFLOAT16;
    default:
      fail("cudnn: dtype ", t, " is not floating");
  }
}
}  // namespace

std::string_view name_of(ConvKind kind) {
  constexpr std::string_view names[] = {"conv2d forward", "conv2d data gradient", "conv2d weight gradient"};
  return names[static_cast<int>(kind)];
}

CudnnGraph::CudnnGraph() : state_(std::make_unique<State>()) {}
CudnnGraph::~CudnnGraph() = default;
CudnnGraph::CudnnGraph(CudnnGraph&&) noexcept = default;

int CudnnGraph::tensor(const Shape& s, DType dtype, bool is_virtual) {
  const std::array<int64_t, 4> dims = {s[0], s[3], s[1], s[2]};
  const std::array<int64_t, 4> strides = {s[1] * s[2] * s[3], 1, s[2] * s[3], s[3]};
  const int64_t uid = static_cast<int64_t>(state_->tensors.size()) + 1;
  Descriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set(CUDNN_ATTR_TENSOR_DATA_TYPE, dnn_type(dtype))
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.data())
      .set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data())
      .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, uid)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, int64_t{16})
      .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, is_virtual)
      .finalize();
  state_->tensors.push_back(std::move(d));
  if (!is_virtual) state_->real_uids.push_back(uid);
  return static_cast<int>(uid) - 1;
}

void CudnnGraph::convolution(ConvKind kind, int x, int w, int y, const ConvGeometry& g, DType compute) {
  Descriptor conv(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  const int64_t pad[] = {g.padding, g.padding}, stride[] = {g.stride, g.stride}, dilation[] = {g.dilation, g.dilation};
  conv.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, dnn_type(compute))
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode)
      .set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, int64_t{2})
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pad)
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pad)
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride)
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation)
      .finalize();

  struct Names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t alpha, beta, conv, w, x, y;
  };
  static constexpr Names kNames[] = {
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY}};
  const Names& n = kNames[static_cast<int>(kind)];
  const auto at = [&](int i) -> const Descriptor& { return state_->tensors[static_cast<size_t>(i)]; };
  Descriptor op(n.type);
  op.set(n.conv, conv).set(n.x, at(x)).set(n.w, at(w)).set(n.y, at(y));
  if (compute == DType::f64) {
    const double one = 1, zero = 0;
    op.set(n.alpha, CUDNN_TYPE_DOUBLE, 1, &one).set(n.beta, CUDNN_TYPE_DOUBLE, 1, &zero);
  } else {
    const float one = 1, zero = 0;
    op.set(n.alpha, CUDNN_TYPE_FLOAT, 1, &one).set(n.beta, CUDNN_TYPE_FLOAT, 1, &zero);
  }
  op.finalize();
  state_->parts.push_back(std::move(conv));
  state_->operations.push_back(std::move(op));
}

namespace {
Descriptor pointwise(cudnnPointwiseMode_t mode) {
  Descriptor d(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  d.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT)
      .finalize();
  return d;
}
}  // namespace

void CudnnGraph::identity(int x, int y) {
  state_->parts.push_back(pointwise(CUDNN_POINTWISE_IDENTITY));
  Descriptor op(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, state_->parts.back())
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, state_->tensors[static_cast<size_t>(x)])
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, state_->tensors[static_cast<size_t>(y)])
      .finalize();
  state_->operations.push_back(std::move(op));
}

void CudnnGraph::channel_sums(int x, int sum, int squares) {
  const auto at = [&](int i) -> const Descriptor& { return state_->tensors[static_cast<size_t>(i)]; };
  const cudnnGenStatsMode_t mode = CUDNN_GENSTATS_SUM_SQSUM;
  Descriptor op(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, 1, &mode)
      .set(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_DATA_FLOAT)
      .set(CUDNN_ATTR_OPERATION_GENSTATS_XDESC, at(x))
      .set(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, at(sum))
      .set(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, at(squares))
      .finalize();
  state_->operations.push_back(std::move(op));
}

void CudnnGraph::bias(int x, int b, int y) {
  state_->parts.push_back(pointwise(CUDNN_POINTWISE_ADD));
  Descriptor op(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, state_->parts.back())
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, state_->tensors[static_cast<size_t>(x)])
      .set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, state_->tensors[static_cast<size_t>(b)])
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, state_->tensors[static_cast<size_t>(y)])
      .finalize();
  state_->operations.push_back(std::move(op));
}

}  // namespace ht
