// The CPU kernels are compiled for one x86-64 level (CMake: SLIP_CPU_LEVEL); this says so before they run.
#pragma once
namespace slip {
const char* cpu_level();  // "x86-64-v4", ...; "generic" elsewhere
void cpu_level_check();   // fails with the remedy where this processor lacks that level
}  // namespace slip
