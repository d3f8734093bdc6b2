// Commands around feature dumps, beside `dump` itself.
#pragma once
#include "apps/options.hpp"

namespace slip {

int run_exchange(const Arguments&);
int run_bench_dump(const Arguments&);

}  // namespace slip
