//! The link manager: tariffs and books, lines and modems, sans-IO.

pub mod calendar;
pub mod money;
pub mod tariff;
