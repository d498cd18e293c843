//! The CUDA driver functions this project calls, found at run time.
