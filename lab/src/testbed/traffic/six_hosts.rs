//! A page of sixty objects from six hosts as the web of today has them, and its server: a text,
//! five style sheets, of which one imports another, eight scripts, four fonts, which the sheets
//! name, and forty-two images, of which six are the sheets'. About 200 kB, half of it text.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use os::netns::NetNs;
use os::proc::{die_with_parent, reset_signals};
use units::Rng;

use super::dns;
use crate::testbed::topology::PREFIX;

/// Objects of a page, with its text.
pub const OBJECTS: usize = 60;
/// The network of the six hosts, in nobody's use (RFC 5737).
pub const NETWORK: &str = "203.0.113.0/24";
/// Each has an address of its own, so that no connection serves two of them.
const HOSTS: [&str; 6] = ["www", "static", "cdn", "fonts", "img1", "img2"];
/// Until the server listens.
const START: Duration = Duration::from_secs(20);

static MADE: AtomicU64 = AtomicU64::new(0);

/// The addresses of the six.
pub fn hosts() -> dns::Hosts {
    HOSTS.iter().zip(11..).map(|(host, last)| (*host, Ipv4Addr::new(203, 0, 113, last))).collect()
}

/// The server of all six: Caddy, over HTTP/1.1 in clear and HTTP/1.1 and HTTP/2 over TLS. Text is
/// compressed. Gone when dropped, and its files with it.
pub struct Site {
    dir: PathBuf,
    server: Option<Child>,
}

impl Site {
    /// Its files: the server's certificate, and no page yet.
    ///
    /// # Errors
    /// A sentence.
    pub fn make() -> Result<Site, String> {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let dir =
            std::env::temp_dir().join(format!("{PREFIX}-{}-site-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let site = Site { dir, server: None };
        let dir = &site.dir;
        let cannot = |e: io::Error| format!("cannot write below {}: {e}", dir.display());
        fs::create_dir_all(dir.join("pages")).map_err(cannot)?;
        fs::write(dir.join("Caddyfile"), caddyfile(dir)).map_err(cannot)?;
        certify(dir)?;
        Ok(site)
    }

    /// Starts the server in this namespace, which has the addresses.
    ///
    /// # Errors
    /// A sentence.
    pub fn serve(&mut self, ns: &NetNs) -> Result<(), String> {
        let dir = &self.dir;
        let log = File::create(dir.join("log")).map_err(|e| format!("caddy has no log: {e}"))?;
        let mut caddy = ns.command("caddy");
        caddy.args(["run", "--adapter", "caddyfile", "--config"]).arg(dir.join("Caddyfile"));
        caddy.env("HOME", dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = die_with_parent(reset_signals(&mut caddy)).spawn();
        let missing = |e| format!("caddy does not start: {e}; `make setup` installs it");
        self.server = Some(child.map_err(missing)?);
        self.wait(ns)
    }

    /// A file that names a DNS server for the browser.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn resolver(&self, server: IpAddr) -> io::Result<PathBuf> {
        let file = self.dir.join("resolv.conf");
        fs::write(&file, format!("nameserver {server}\n"))?;
        Ok(file)
    }

    fn wait(&self, ns: &NetNs) -> Result<(), String> {
        let at = SocketAddr::new(hosts()[0].1.into(), 443);
        let begin = Instant::now();
        while ns.run(|| TcpStream::connect(at)).is_err() {
            if begin.elapsed() > START {
                let said = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
                return Err(format!("caddy does not listen: {said}"));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// The authority of the server's certificate.
    pub fn authority(&self) -> PathBuf {
        self.dir.join("root.pem")
    }

    /// Makes a page that nobody has seen, of this number, whose hosts' names end in `-NAMES`; its
    /// address.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn page(&self, number: u64, names: &str, is_secure: bool) -> io::Result<String> {
        let dir = self.dir.join("pages").join(number.to_string());
        fs::create_dir(&dir)?;
        let mut page = Page { number, names, rng: Rng::new(number + 1) };
        for (name, body) in page.bodies() {
            fs::write(dir.join(name), body)?;
        }
        let scheme = if is_secure { "https" } else { "http" };
        Ok(format!("{scheme}:{}", page.at("www", "index.html")))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn caddyfile(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "{{\n admin off\n auto_https off\n skip_install_trust\n servers {{\n protocols h1 h2\n }}\n}}\n\
         (site) {{\n root * {dir}/pages\n encode gzip\n header Access-Control-Allow-Origin *\n \
         @static not path *.html\n header @static Cache-Control max-age=600\n file_server\n}}\n\
         http://*.site.test {{\n import site\n}}\n\
         https://*.site.test {{\n tls {dir}/site.pem {dir}/site.key\n import site\n}}\n"
    )
}

/// An authority, and a certificate of it for all six hosts.
fn certify(dir: &Path) -> Result<(), String> {
    const SCRIPT: &str = "\
        key='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'\n\
        echo 'subjectAltName=DNS:*.site.test' > names\n\
        openssl req -x509 $key -days 2 -subj /CN=world -keyout root.key -out root.pem\n\
        openssl req $key -subj /CN=site -keyout site.key -out site.csr\n\
        openssl x509 -req -in site.csr -CA root.pem -CAkey root.key -CAcreateserial -days 2 \
        -extfile names -out site.only\n\
        cat site.only root.pem > site.pem\n";
    let made = Command::new("sh").args(["-e", "-c", SCRIPT]).current_dir(dir).output();
    let made = made.map_err(|e| format!("no shell: {e}"))?;
    match made.status.success() {
        true => Ok(()),
        false => Err(format!("no certificate: {}", String::from_utf8_lossy(&made.stderr))),
    }
}

struct Page<'a> {
    number: u64,
    names: &'a str,
    rng: Rng,
}

impl Page<'_> {
    /// Where an object is, in the page's own scheme.
    fn at(&self, host: &str, name: &str) -> String {
        format!("//{host}{}.site.test/{}/{name}", self.names, self.number)
    }

    /// All objects, and the pages' files by name: no two hosts have one of the same name.
    fn bodies(&mut self) -> Vec<(String, Vec<u8>)> {
        let mut all = vec![("index.html".to_owned(), self.text())];
        for n in 0..5 {
            all.push((format!("{n}.css"), self.sheet(n)));
        }
        for n in 0..8 {
            let script = format!("var words{n} = `{}`;\n", self.words(6_000));
            all.push((format!("{n}.js"), script.into()));
        }
        for n in 0..4 {
            // Browsers find that it is no font when they have all of it.
            all.push((format!("{n}.woff2"), self.noise(8_000)));
        }
        for n in 0..42 {
            all.push((format!("{n}.bmp"), self.image(n)));
        }
        all
    }

    fn text(&mut self) -> Vec<u8> {
        let mut text =
            String::from("<!doctype html><meta charset=utf-8><link rel=icon href=\"data:,\">\n");
        for n in 0..4 {
            // Browsers list what another host's sheet asks for only if that host allows it.
            let _ = writeln!(
                text,
                "<link rel=stylesheet crossorigin href=\"{}\">",
                self.at("static", &format!("{n}.css"))
            );
        }
        for n in 0..8 {
            let _ = writeln!(
                text,
                "<script defer src=\"{}\"></script>",
                self.at("cdn", &format!("{n}.js"))
            );
        }
        for n in 0..36 {
            let host = ["www", "img1", "img2"][if n < 4 { 0 } else { n % 2 + 1 }];
            let image = self.at(host, &format!("{n}.bmp"));
            let _ = writeln!(
                text,
                "<img src=\"{image}\" alt=\"\"><p class=\"f{}\">{}</p>",
                n % 4,
                self.words(180)
            );
        }
        for n in 0..6 {
            let _ = writeln!(text, "<div class=\"b{n}\">{n}</div>");
        }
        text += SCRIPT;
        text.into()
    }

    fn sheet(&mut self, n: usize) -> Vec<u8> {
        let mut sheet = String::new();
        if n == 0 {
            let _ = writeln!(sheet, "@import url(\"{}\");", self.at("static", "4.css"));
        }
        if n < 4 {
            let font = self.at("fonts", &format!("{n}.woff2"));
            let _ = writeln!(
                sheet,
                "@font-face {{ font-family: f{n}; src: url(\"{font}\") format(\"woff2\") }}\n.f{n} {{ font-family: f{n} }}"
            );
        }
        // All in one that the text names: browsers list nothing that an imported sheet asks for.
        for b in (0..6).filter(|_| n == 3) {
            let image = self.at("static", &format!("{}.bmp", 36 + b));
            let _ = writeln!(sheet, ".b{b} {{ background: url(\"{image}\") }}");
        }
        while sheet.len() < 5_000 {
            let word = self.word();
            let (width, margin) = (self.below(900), self.below(40));
            let _ = writeln!(sheet, ".{word} {{ width: {width}px; margin: 0 {margin}px }}");
        }
        sheet.into()
    }

    /// An image of 24-bit noise, 9 to 49 rows of 32 pixels: 0.9 to 4.8 kB that nothing compresses.
    fn image(&mut self, n: usize) -> Vec<u8> {
        let (width, height) = (32u32, 9 + (n as u32 * 7) % 31);
        let pixels = width * height * 3;
        let mut image = b"BM".to_vec();
        for number in [54 + pixels, 0, 54, 40, width, height, 1 | 24 << 16, 0, pixels, 0, 0, 0, 0] {
            image.extend(number.to_le_bytes());
        }
        image.extend(self.noise(pixels as usize));
        image
    }

    fn noise(&mut self, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|_| self.rng.next_u64() as u8).collect()
    }

    fn below(&mut self, most: u64) -> u64 {
        self.rng.next_u64() % most
    }

    /// One of a few thousand words, the first of them often.
    fn word(&mut self) -> String {
        const PARTS: [&str; 16] = [
            "sea", "an", "or", "lin", "ter", "wa", "mo", "ves", "ne", "ti", "gal", "por", "tu",
            "de", "ris", "al",
        ];
        let most = 1 + self.below(16);
        (0..3).map(|_| PARTS[self.below(most) as usize]).collect()
    }

    fn words(&mut self, bytes: usize) -> String {
        let mut text = String::new();
        while text.len() < bytes {
            text += &self.word();
            text.push(' ');
        }
        text
    }
}

/// What the page tells when all of it is there: milliseconds since its address was entered, the
/// objects, the images of them that can be shown, and the protocol of the page's text.
const SCRIPT: &str = "<p id=told></p><script>addEventListener('load', () => {
const of = kind => performance.getEntriesByType(kind);
const shown = [...document.images].filter(image => image.naturalWidth == 32).length;
document.getElementById('told').textContent = ['loaded', of('navigation')[0].loadEventStart,
1 + of('resource').length, shown, of('navigation')[0].nextHopProtocol, 'end'].join(' ');
});</script>\n";

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_page_names_its_sixty_objects_and_each_is_there() {
        let mut page = Page { number: 3, names: "-x", rng: Rng::new(4) };
        let bodies = page.bodies();
        let names: BTreeSet<&str> = bodies.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((bodies.len(), names.len()), (OBJECTS, OBJECTS));
        let texts =
            bodies.iter().filter(|(name, _)| name.ends_with("html") || name.ends_with("css"));
        let texts: String = texts.map(|(_, body)| String::from_utf8_lossy(body)).collect();
        let mut named: BTreeSet<&str> =
            texts.split('"').filter_map(|text| text.strip_prefix("//")).collect();
        assert!(named.iter().all(|name| name.split('/').nth(1) == Some("3")), "{named:?}");
        let hosts: BTreeSet<&str> =
            named.iter().filter_map(|name| name.split('.').next()).collect();
        assert_eq!(hosts.len(), HOSTS.len());
        named = named.iter().filter_map(|name| name.rsplit('/').next()).collect();
        named.insert("index.html");
        assert_eq!(named, names);
        let bytes: usize = bodies.iter().map(|(_, body)| body.len()).sum();
        assert!((190_000..240_000).contains(&bytes), "{bytes}");
    }
}
