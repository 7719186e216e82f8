//! What the program is told where it is started (`command` of its table in the gateway's file).

use units::ByteCount;

/// Bytes that are pushed for one page, unless the file says otherwise.
const PUSH: u64 = 1_000_000;

/// The program's options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `--push`: bytes for one page; 0: nothing is pushed.
    pub push: u64,
}

/// What is wrong with them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// It is none.
    #[error("bentpipe-web has no option \"{0}\"; it has --push SIZE")]
    Unknown(String),
    /// It needs a size.
    #[error("{0} needs a size such as \"1MB\", or 0")]
    Size(String),
}

impl Options {
    /// Reads them.
    ///
    /// # Errors
    /// The first one that is wrong.
    pub fn of(arguments: impl IntoIterator<Item = String>) -> Result<Options, Wrong> {
        let mut options = Options { push: PUSH };
        let mut arguments = arguments.into_iter();
        while let Some(name) = arguments.next() {
            match name.as_str() {
                "--push" => options.push = size(&name, arguments.next())?,
                _ => return Err(Wrong::Unknown(name)),
            }
        }
        Ok(options)
    }
}

fn size(name: &str, text: Option<String>) -> Result<u64, Wrong> {
    match text.as_deref() {
        Some("0") => Ok(0),
        Some(text) => text.parse().map(|n: ByteCount| n.0).map_err(|_| Wrong::Size(name.into())),
        None => Err(Wrong::Size(name.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_wrong_ones_named() {
        let read = |words: &[&str]| Options::of(words.iter().map(|w| (*w).to_owned()));
        assert_eq!(read(&[]), Ok(Options { push: PUSH }));
        assert_eq!(read(&["--push", "0"]), Ok(Options { push: 0 }));
        assert_eq!(read(&["--push", "64kB"]), Ok(Options { push: 64_000 }));
        assert_eq!(read(&["--push"]), Err(Wrong::Size("--push".into())));
        assert_eq!(read(&["--push", "many"]), Err(Wrong::Size("--push".into())));
        assert_eq!(read(&["--pull", "1"]), Err(Wrong::Unknown("--pull".into())));
    }
}
