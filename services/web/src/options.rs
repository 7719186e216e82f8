//! What the program is told when it is started (docs/web.md).

use std::path::PathBuf;

use bentpipe_web::push::Budget;
use clap::Parser as _;
use units::ByteCount;

/// The web over a bentpipe link. A gateway starts this program; its file has the arguments.
#[derive(clap::Parser, Debug)]
#[command(name = "bentpipe-web", version)]
pub struct Options {
    /// Where answers are kept. Default: `cache` in the service's `directory`; without one they are
    /// kept in memory alone.
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// What they may take of the disk; 0: nothing is kept there.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub cache_size: ByteCount,
    /// What answers may take at a hub, for all terminals behind it: on disk in the service's
    /// `directory`, without one in memory, 16 MiB at most; 0: nothing is kept there.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    pub hub_cache: ByteCount,
    /// What is sent of one page's objects before hosts ask for them; the smaller of both ends'
    /// numbers holds. 0: nothing is.
    #[arg(long, value_name = "SIZE", default_value = "1MB", value_parser = size)]
    pub push: ByteCount,
    /// The same over a link whose bytes cost money by this node's file.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size)]
    pub push_paid: ByteCount,
    /// Opens HTTPS, with the authority in this directory: `ca.pem`, `ca.key`, and a list of names
    /// that are never opened, `bypass`. `bentpipe-web ca DIR` makes them. Without it HTTPS passes
    /// as it is.
    #[arg(long, value_name = "DIR")]
    pub inspect: Option<PathBuf>,
    /// Authorities that servers' certificates may be of, beside those that the system trusts: a
    /// file in PEM. For the hub.
    #[arg(long, value_name = "FILE")]
    pub trust: Option<PathBuf>,
    #[command(subcommand)]
    pub what: Option<What>,
}

/// What the program does where it is no service.
#[derive(clap::Subcommand, Debug)]
pub enum What {
    /// Makes an authority for `--inspect`, and says how devices come to trust it.
    Ca {
        /// Where it is made; for its owner, who has to be the service's user.
        dir: PathBuf,
    },
}

impl Options {
    /// Those of this process.
    pub fn of_this_process() -> Options {
        let mut options = Options::parse();
        let given = home().map(|home| home.join("cache"));
        options.cache = options.cache.or(given).filter(|_| options.cache_size.0 > 0);
        options
    }

    /// Where a hub keeps answers.
    pub fn hub_directory(&self) -> Option<PathBuf> {
        home().map(|home| home.join("hub"))
    }
}

/// The service's `directory`.
fn home() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    home.filter(|home| home.parent().is_some())
}

impl Options {
    /// What is pushed for one page.
    pub fn budget(&self) -> Budget {
        Budget { free: self.push.0, paid: self.push_paid.0 }
    }
}

/// A size, or 0.
fn size(text: &str) -> Result<ByteCount, String> {
    match text {
        "0" => Ok(ByteCount(0)),
        _ => text.parse().map_err(|e: units::ParseUnitError| e.to_string()),
    }
}
