#include "device/cpu_level.hpp"

#include <string>
#include <string_view>

#include "core/check.hpp"

namespace slip {

const char* cpu_level() { return SLIP_CPU_LEVEL; }

void cpu_level_check() {
#ifdef __x86_64__
  const std::string_view level = cpu_level();
  __builtin_cpu_init();
  const bool ok = level == "x86-64-v4"   ? __builtin_cpu_supports("x86-64-v4")
                  : level == "x86-64-v3" ? __builtin_cpu_supports("x86-64-v3")
                                         : true;
  if (!ok) {
    fail("built for " + std::string(level) +
         ", which this processor lacks: configure again here, or with -DSLIP_CPU_LEVEL=x86-64-v3");
  }
#endif
}

}  // namespace slip
