//! A stream's bytes, made fewer (R-COMPRESS).
