//! Room `channel`.
