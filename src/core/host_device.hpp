// SLIP_HD: a function that host code and kernels share.
#pragma once
#ifdef __CUDACC__
#define SLIP_HD __host__ __device__
#else
#define SLIP_HD
#endif
