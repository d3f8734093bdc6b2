// Statistics of a tensor's values, read in pieces: a tensor may be larger than memory.
#pragma once
#include "apps/inspect.hpp"
#include "core/progress.hpp"

namespace slip {

// mean, deviation (of the whole, not of a sample), min and max of the finite values, null where there are
// none; counts of NaN and infinities. Null in all for a dtype that is not read as numbers.
Facts tensor_statistics(const SafetensorsFile&, const TensorInfo&, Progress&);

}  // namespace slip
