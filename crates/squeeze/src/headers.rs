//! The headers of unsplit packets (R-HC).
