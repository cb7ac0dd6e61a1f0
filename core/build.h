// What this build holds. Apart from core/device.h so that only files with a CUDA side differ between a build with and
// one without it: a compiler cache then serves both with one object of each of the others.
#pragma once

namespace ht {

#if defined(HT_CUDA)
inline constexpr bool kCudaBuild = true;
#else
inline constexpr bool kCudaBuild = false;
#endif

}  // namespace ht
