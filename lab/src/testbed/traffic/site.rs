//! A web page and its server: a text, a style sheet and images of one to five parts, together as
//! many bytes as somebody has published of a page without telling how they divide.

use std::io::Write as _;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use units::Rng;

use super::browser::read_head;

/// The bodies of a page's objects; the first is its text.
pub type Bodies = Vec<Vec<u8>>;

/// So many objects, and bytes of all of them, that nothing compresses; another `seed` makes
/// another page.
pub fn bodies(objects: usize, bytes: usize, seed: u64) -> Bodies {
    let part = |n: usize| n % 5 + 1;
    let parts: usize = (0..objects).map(part).sum();
    let end = |n: usize| bytes * (0..n).map(part).sum::<usize>() / parts;
    let body = |n: usize| {
        let mut rng = Rng::new(seed * 1000 + n as u64 + 1);
        (0..end(n + 1) - end(n)).map(|_| b' ' + (rng.next_u64() % 95) as u8).collect()
    };
    let mut all: Bodies = (0..objects).map(body).collect();
    if let Some(first) = all.first_mut() {
        *first = text(objects, first);
    }
    all
}

/// The page's text: the names of all its objects, and padding.
fn text(objects: usize, noise: &[u8]) -> Vec<u8> {
    let mut text = String::from("<!doctype html><link rel=stylesheet href=\"1.css\">");
    for n in 2..objects {
        text += &format!("<img src=\"{n}.gif\">");
    }
    text += "<p>";
    let missing = noise.len().saturating_sub(text.len());
    let padding = noise.iter().copied().filter(u8::is_ascii_alphanumeric).cycle();
    text.into_bytes().into_iter().chain(padding.take(missing)).collect()
}

/// Pages of this name may be kept for an hour, text and objects.
pub const FRESH: &str = "fresh";
/// Of pages of this name the objects may be kept for an hour; the text is another at each request,
/// by two bytes in a hundred.
pub const NEWS: &str = "news";

/// Serves pages: `/PAGE-NAME/OBJECT.ending` is an object of the page of that number, under any
/// name. Of a page nothing is said of how long it may be kept, but for [`FRESH`] and [`NEWS`].
/// Ends with the listener or, if it does not block, when `stop` says so.
pub fn serve(listener: &TcpListener, pages: Vec<Bodies>, stop: &AtomicBool) {
    let pages = Arc::new(pages);
    while !stop.load(Ordering::Relaxed) {
        let Ok((stream, _)) = listener.accept() else {
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        let pages = Arc::clone(&pages);
        // A client that goes away ends its thread.
        thread::spawn(move || serve_one(stream, &pages));
    }
}

fn serve_one(mut stream: TcpStream, pages: &[Bodies]) -> Option<()> {
    stream.set_nonblocking(false).ok()?;
    stream.set_nodelay(true).ok()?;
    loop {
        let head = read_head(&mut stream).ok()?;
        let mut words = head.split_ascii_whitespace();
        let (target, version) = (words.nth(1)?, words.next()?);
        let (page, rest) = target.strip_prefix('/')?.split_once('-')?;
        let (style, name) = rest.split_once('/')?;
        let number = name.split('.').next()?.parse().unwrap_or(0);
        let body = pages.get(page.parse::<usize>().ok()?)?.get(number)?;
        let is_news = style == NEWS && number == 0;
        let body = if is_news { &edition(body) } else { body };
        let kept = match style {
            NEWS if number == 0 => "Cache-Control: no-cache\r\n",
            FRESH | NEWS => "Cache-Control: max-age=3600\r\n",
            _ => "",
        };
        let kind = match name.rsplit('.').next()? {
            "css" => "text/css",
            "gif" => "image/gif",
            "js" => "text/javascript",
            _ => "text/html",
        };
        let last = version == "HTTP/1.0";
        let close = if last { "Connection: close\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{kept}{close}Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat()).ok()?;
        if last {
            return stream.shutdown(Shutdown::Write).ok();
        }
    }
}

/// The text with two bytes in a hundred of its end changed, in four places, each time others.
fn edition(text: &[u8]) -> Vec<u8> {
    static EDITIONS: AtomicU64 = AtomicU64::new(1);
    let mut rng = Rng::new(EDITIONS.fetch_add(1, Ordering::Relaxed));
    let mut text = text.to_vec();
    let (length, each) = (text.len(), text.len().div_ceil(200));
    for place in 1..=4 {
        // Behind the names: they are in the first third.
        let at = length - place * length / 8;
        text[at..at + each].fill_with(|| b'a' + (rng.next_u64() % 26) as u8);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::browser::Browser;
    use super::*;

    #[test]
    fn an_edition_differs_from_the_text_in_two_bytes_of_a_hundred_and_names_the_same_objects() {
        for (objects, bytes) in [(30, 212_207), (8, 72_103)] {
            let text = &bodies(objects, bytes, 1)[0];
            let (one, other) = (edition(text), edition(text));
            let differ = one.iter().zip(&other).filter(|(a, b)| a != b).count();
            assert!((text.len() / 60..=text.len() / 40).contains(&differ), "{differ}");
            let names = |text: &[u8]| String::from_utf8_lossy(text).matches(".gif\"").count();
            assert_eq!((names(&one), one.len()), (names(text), text.len()));
        }
    }

    #[test]
    fn every_browser_loads_every_object_of_a_page_once() {
        let pages = vec![bodies(30, 212_207, 1), bodies(8, 72_103, 2)];
        let lengths = pages.iter().map(|page| page.iter().map(Vec::len).sum::<usize>());
        assert_eq!(lengths.collect::<Vec<_>>(), [212_207, 72_103]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        thread::spawn(move || serve(&listener, pages, &AtomicBool::new(false)));
        for browser in Browser::ALL {
            let got = browser.load(at, "/1-0/", None).unwrap();
            assert_eq!((got.objects, got.bytes), (8, 72_103), "{}", browser.name());
            assert_eq!(got.elements.len(), 8);
            assert!(got.elements.iter().all(|(asked, came)| asked <= came));
            let connections = match browser {
                Browser::Old => 8..9,
                Browser::Kept => 2..7,
                Browser::Few | Browser::Pipelined => 2..3,
                Browser::Single | Browser::SinglePipelined => 1..2,
            };
            assert!(connections.contains(&got.connections), "{got:?}");
        }
    }
}
