// The subcommands: parse, build, call, return an exit code. main.cpp lists them.
#pragma once
#include "apps/options.hpp"

namespace slip {

int run_train(const Arguments&, int& argc, char**& argv);
int run_dump_command(const Arguments&, int& argc, char**& argv);
int run_plan(const Arguments&);
int run_features(const Arguments&);
int run_step(const Arguments&);
int run_inspect(const Arguments&);
int run_report(const Arguments&);
int run_doctor(const Arguments&, int& argc, char**& argv);
int run_decode(const Arguments&, int& argc, char**& argv);
int run_generate(const Arguments&, int& argc, char**& argv);
int run_bench(const Arguments&);
int run_bench_wire(const Arguments&, int& argc, char**& argv);

}  // namespace slip
