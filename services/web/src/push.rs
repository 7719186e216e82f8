//! Page push: what a page will ask for is fetched at the hub, and sent ahead of the request.
//!
//! The hub reads HTML and style sheets as they stream by ([`scan`]) and decides what of that it
//! fetches ([`plan`]). Before a byte that names an object crosses the link, the terminal is told
//! that the object comes ([`frames`]), so that a host's request for it waits for it there instead
//! of crossing ([`shelf`]). Which fields say so is in [`fields`].

pub mod fields;
pub mod frames;
pub mod held;
pub mod plan;
pub mod scan;
pub mod shelf;

mod css;
mod html;

#[cfg(any(test, fuzzing))]
use http::Uri;

/// By what an object is known at both ends: host and target.
pub use crate::cache::plain_uri as name_of;

/// Bytes of an object's address, and of what references start from.
const MAX_ADDRESS: usize = 2 << 10;

/// Bytes that may be pushed for one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Where bytes cost nothing.
    pub free: u64,
    /// Where they cost money: some of what is pushed is never asked for.
    pub paid: u64,
}

impl Budget {
    /// Over a link that bills bytes or time, or neither.
    pub fn over(self, bills: bool) -> u64 {
        if bills { self.paid.min(self.free) } else { self.free }
    }
}

/// What an object is to a page, in the order in which objects are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Where a redirect leads, or a frame's page.
    Page,
    /// A style sheet.
    Style,
    /// A script.
    Script,
    /// A font.
    Font,
    /// An image, and everything else that nothing waits for.
    Image,
}

impl Kind {
    /// Does a browser show nothing before it has these?
    pub fn is_urgent(self) -> bool {
        self != Kind::Image
    }
}

/// An object that a text names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// As it is written there.
    pub reference: String,
    /// What it is to the page.
    pub kind: Kind,
}

/// For the fuzzers: what a page, a sheet, a body with promises and a packed page mean does not
/// depend on how their bytes arrive, and nothing that is found leads where it may not.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub fn fuzz(data: &[u8]) {
    use std::collections::BTreeSet;
    let Some((&kind, data)) = data.split_first() else { return };
    let kind = usize::from(kind);
    let step = kind / 4 + 1;
    match kind % 4 {
        0 => {
            let (mut html, mut found) = (html::Html::new(), Vec::new());
            data.chunks(step).for_each(|part| html.read(part, &mut found));
            let page = url::Url::parse("http://a.test/").expect("a page");
            let mut plan = plan::Plan::new(page.clone(), BTreeSet::new(), 1);
            plan.find(&page, found, 1);
            while let Some(wanted) = plan.start() {
                let uri: Uri = wanted.url.as_str().parse().expect("an address of HTTP's");
                assert_eq!(name_of(&uri), wanted.name);
                assert!(wanted.url.port().is_none());
                plan.done();
            }
        }
        1 => {
            let read = |step| {
                let (mut css, mut found) = (css::Css::default(), Vec::new());
                data.chunks(step).for_each(|part| css.read(part, &mut found));
                found
            };
            // A longer token may be cut where its bytes arrive apart.
            assert!(data.len() > css::MAX_TOKEN || read(step) == read(data.len().max(1)));
        }
        2 => {
            let (mut reader, mut parts) = (frames::Reader::default(), Vec::new());
            for part in data.chunks(step) {
                if reader.read(bytes::Bytes::copy_from_slice(part), &mut parts).is_err() {
                    return;
                }
            }
        }
        _ => {
            let mut unpacker = crate::delta::Unpacker::new(b"a page of before").expect("memory");
            for part in data.chunks(step) {
                unpacker.take(bytes::Bytes::copy_from_slice(part));
                while let Ok(Some(_)) = unpacker.give() {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_fuzzers_found_worth_keeping_holds() {
        // In every way of arriving, and as each of the four.
        corpus::replay("web-push", |data| {
            (0..=u8::MAX).for_each(|kind| fuzz(&[&[kind], &data[1..]].concat()));
        });
    }

    #[test]
    fn an_object_has_one_name_however_its_host_is_written() {
        for uri in ["http://A.test/x?y", "http://a.test:80/x?y"] {
            assert_eq!(name_of(&uri.parse().unwrap()), "a.test/x?y");
        }
        assert_eq!(name_of(&"http://a.test:8080/".parse().unwrap()), "a.test:8080/");
    }
}
