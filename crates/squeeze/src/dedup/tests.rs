//! Two ends of a link with everything that may go wrong between and below them.

use super::disk;
mod ends;
mod faults;
mod figures;
mod property;
mod waiting;
