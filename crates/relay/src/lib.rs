//! Room `relay`.
