//! The operator's `down` stays over restarts: a file beside the ledger tells which lines are
//! forbidden. What else is ordered (`hold`, `up`) costs, and ends with the gateway.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use dial::books::Name;
use dial::manager::{CarrierId, Command, Manager};
use link::keys::PublicKey;
use serde::{Deserialize, Serialize};

use crate::config::Line;
use crate::human;
use crate::ledger;
use crate::state_directory::{read_sound, write_whole};

/// Which lines of a peer are to stay down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Forbidden {
    /// `link down` was said of all.
    all: bool,
    /// Lines of which something else than of all was said: true is down. A name that is not in the
    /// file of the gateway any more means nothing, and means this again when it is back.
    #[serde(default)]
    lines: BTreeMap<String, bool>,
}

/// What a file says. One that cannot be read, or is damaged, may forbid the lines, and they cost.
/// It stays where it is until another order is written, so it forbids them at each start.
fn read(path: &Path) -> Forbidden {
    read_sound(path).map(Option::unwrap_or_default).unwrap_or_else(|why| {
        crate::log!(
            Error,
            "the lines of a peer stay down: what was ordered of them cannot be read",
            file = path.display(),
            why = human::reason(&why),
            mend = "`bentpipe link auto PEER` lets them rise"
        );
        Forbidden { all: true, ..Forbidden::default() }
    })
}

/// The orders of one peer's lines that are on the disk.
pub(super) struct Orders {
    /// `None`: there is no state directory.
    path: Option<PathBuf>,
    written: Forbidden,
}

impl Orders {
    /// What was ordered before is told to the manager.
    pub fn open(
        node: &PublicKey,
        peer: &PublicKey,
        settings: &Line,
        manager: &mut Manager,
    ) -> Orders {
        Orders::at(ledger::orders(node, peer), settings, manager)
    }

    fn at(path: Option<PathBuf>, settings: &Line, manager: &mut Manager) -> Orders {
        let written = path.as_deref().map_or_else(Forbidden::default, read);
        if written.all && settings.raises {
            manager.handle_command(Command::Down);
        }
        for (n, name) in settings.names().enumerate().filter(|_| settings.raises) {
            if let Some(down) = written.lines.get(&**name) {
                let command = if *down { Command::Down } else { Command::Auto };
                manager.handle_line_command(CarrierId(n), command);
            }
        }
        Orders { path, written }
    }

    /// Writes down which lines the manager was told to keep down. At once, for whoever ordered it
    /// relies on it; it is rare.
    pub fn keep(&mut self, peer: &str, settings: &Line, manager: &Manager) {
        let all = manager.command() == Command::Down;
        let own = |(n, name): (usize, &Name)| {
            let down = manager.line_command(CarrierId(n))? == Command::Down;
            (down != all).then(|| (name.to_string(), down))
        };
        let lines = settings.names().enumerate().filter_map(own).collect();
        let forbidden = Forbidden { all, lines };
        let Some(path) = self.path.as_deref().filter(|_| self.written != forbidden) else { return };
        let bytes = serde_json::to_vec(&forbidden).expect("a map of names is JSON");
        match write_whole(path, &bytes) {
            Ok(()) => self.written = forbidden,
            Err(why) => {
                let (file, why) = (path.display(), human::reason(&why));
                crate::log!(
                    Error,
                    "an order is forgotten at a restart: it cannot be written",
                    peer = peer,
                    file = file,
                    why = why
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Lines that rise cost, and a later start must not take a file that is gone for no order.
    #[test]
    fn a_damaged_file_of_orders_keeps_the_lines_down_at_each_start() {
        let dir = std::env::temp_dir().join(format!("bentpipe-orders-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let path = dir.join("ship.down.json");
        let down = Forbidden { all: true, ..Forbidden::default() };
        assert_eq!(read(&path), Forbidden::default(), "nothing was ordered");
        for torn in ["", "{\"all\":fal", "{}", "[]"] {
            fs::write(&path, torn).expect("written");
            assert_eq!((read(&path), read(&path)), (down.clone(), down.clone()), "{torn}");
        }
        // What is ordered next counts.
        let ordered = serde_json::to_vec(&Forbidden::default()).expect("JSON");
        write_whole(&path, &ordered).expect("written");
        assert_eq!(read(&path), Forbidden::default());
        let _ = fs::remove_dir_all(&dir);
    }
}
