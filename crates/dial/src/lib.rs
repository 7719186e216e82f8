//! The link manager: tariffs and books, lines and modems, sans-IO.

pub mod books;
pub mod calendar;
pub mod frame;
pub mod hayes;
pub mod money;
pub mod tariff;
