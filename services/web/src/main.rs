//! `bentpipe-web`: started by a gateway at either end of a link (docs/web.md, spec/web.md).
//!
//! One thread; each connection and each exchange is a task. [`terminal`] has the hosts, [`hub`]
//! the servers, and a program is both.

mod authority;
mod body;
mod busy;
mod client;
mod clock;
mod commands;
mod counted;
mod exchange;
mod gateway;
mod hosts;
mod hub;
mod loads;
mod local;
mod options;
mod rank;
mod shares;
mod socket;
mod store;
mod terminal;
mod tray;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::LocalSet;

use counted::Counted;
use gateway::{Gateway, Given};
use hub::{Hub, Kept, Secure};
use local::Local;
use options::{Options, What};
use shares::Streams;
use store::Store;
use terminal::{Inspection, Terminal};

/// Threads that read files at once.
const READERS: usize = 4;
/// Exchanges of a peer that are served, and streams on which it pushes: twice what it opens,
/// because it may know sooner than this end that one is over.
const EXCHANGES: usize = 4 * exchange::LANES;
const PUSH_STREAMS: usize = 6;
/// Bytes of all answers in memory, of a terminal and of a hub.
const MEMORY: usize = 64 << 20;
const HUB_MEMORY: usize = 16 << 20;
/// How often the gateway hears what was counted.
const TELL: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            service::say_error(&why);
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let options = Options::of_this_process();
    if let Some(What::Ca { dir }) = &options.what {
        std::io::stdout().write_all(authority::make(dir)?.as_bytes())?;
        return Ok(());
    }
    let inspection = options.inspect.as_deref().map(Inspection::open).transpose()?;
    let secure = Secure::new(options.trust.as_deref())?;
    let gateway = Rc::new(Gateway::from_environment()?);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(READERS).build()?;
    LocalSet::new().block_on(&runtime, serve(gateway, options, inspection, secure))
}

async fn serve(
    gateway: Rc<Gateway>,
    options: Options,
    inspection: Option<Inspection>,
    secure: Secure,
) -> Result<(), Box<dyn Error>> {
    let counted = Rc::new(Counted::default());
    let (directory, limit) = (options.cache.as_deref(), options.cache_size.0);
    let store = Store::open(directory, MEMORY, limit, counted.clone());
    let budget = options.budget();
    let inspection = inspection.map(Rc::new);
    let terminal =
        Terminal::new(gateway.clone(), counted.clone(), store.clone(), budget, inspection);
    let terminal = Rc::new(terminal);
    let kept = hub_cache(&options);
    let hub = Rc::new(Hub::new(gateway.clone(), counted, kept, budget, secure));
    Local::spawn(tell(terminal.clone(), hub.clone()));
    let (exchanges, pushes) = (Streams::default(), Streams::default());
    gateway
        .hear(|given| match given {
            Given::Accepted(it, read, socket) => {
                Local::spawn(terminal.clone().serve(it, read, socket));
            }
            Given::Incoming(it, preface, socket) if preface == exchange::PREFACE => {
                exchanges.serve(&it.peer.clone(), EXCHANGES, hub.clone().serve(it.peer, socket));
            }
            Given::Incoming(it, preface, socket) if preface == exchange::PUSH_PREFACE => {
                let its = terminal::Pushes::serve(terminal.pushes.clone(), it.peer.clone(), socket);
                pushes.serve(&it.peer, PUSH_STREAMS, its);
            }
            Given::Command(request, words) => {
                let (terminal, hub) = (terminal.clone(), hub.clone());
                Local::spawn(async move {
                    let answer = commands::answer(&terminal, hub.kept.as_ref(), &words).await;
                    hub.gateway.answer(request, answer);
                });
            }
            Given::Narrowed(peer, denied) => hub.narrow(&peer, &denied),
            // Of another version: dropping the socket resets the stream.
            Given::Incoming(it, ..) => eprintln!("{} speaks another exchange", it.peer),
        })
        .await?;
    Ok(())
}

/// What a hub keeps, which is counted apart from what a terminal does.
fn hub_cache(options: &Options) -> Option<Kept> {
    let (directory, limit) = (options.hub_directory(), options.hub_cache.0);
    let memory = HUB_MEMORY.min(limit.try_into().unwrap_or(usize::MAX));
    let open = || Store::open(directory.as_deref(), memory, limit, Rc::default());
    (limit > 0).then(|| Kept::new(open()))
}

/// Tells the gateway what was counted, when that changes.
async fn tell(terminal: Rc<Terminal>, hub: Rc<Hub>) {
    let mut told = BTreeMap::new();
    loop {
        tokio::time::sleep(TELL).await;
        terminal.pushes.tidy();
        terminal.loads.told().iter().for_each(|line| eprintln!("{line}"));
        if let Some(inspection) = &terminal.inspection {
            inspection.look();
        }
        let mut now = terminal.counted.all();
        now.extend(terminal.store.sizes().named().map(|(name, n)| (name.to_owned(), n)));
        let kept = hub.kept.as_ref().map(|kept| kept.store.told());
        let kept = kept.into_iter().flatten().map(|(name, n)| (format!("hub_{name}"), n));
        now.extend(kept);
        if now != told {
            terminal.gateway.tell(now.clone());
            told = now;
        }
    }
}
