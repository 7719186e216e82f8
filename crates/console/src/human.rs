//! Numbers, times and errors as people read them.

pub use units::human::{bytes, grouped, lasting, memory, span};

/// The system's words without the "(os error 13)" that helps nobody.
pub fn reason(e: &std::io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or("").to_lowercase()
}
