//! What a row tells: figures, asked for and measured.

use serde::Serialize;

/// One figure: asked for and measured.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    /// What it is.
    pub what: String,
    /// What the link's arithmetic allows; empty where there is none.
    pub limit: String,
    /// What the best existing tool reaches; empty where nobody knows.
    pub best: String,
    /// What is asked for; empty where the figure is only told.
    pub asked: String,
    /// What was measured.
    pub measured: String,
    /// The same as a number, in the unit of `asked`, where it is one.
    pub value: Option<f64>,
    /// True if it is enough; nothing where nothing is asked.
    pub met: Option<bool>,
    /// The number of an earlier run, where there is one to compare with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<f64>,
}

impl Checked {
    /// A figure that must reach something.
    pub fn asked(what: &str, asked: &str, measured: String, met: bool) -> Checked {
        let told = Checked::told(what, measured);
        Checked { asked: asked.into(), met: Some(met), ..told }
    }

    /// A figure that is only told.
    pub fn told(what: &str, measured: String) -> Checked {
        let none = String::new;
        Checked {
            what: what.into(),
            limit: none(),
            best: none(),
            asked: none(),
            measured,
            value: None,
            met: None,
            before: None,
        }
    }

    /// The earlier figure, and how far this one is from it.
    pub fn earlier(&self) -> String {
        match self.value.zip(self.before) {
            Some((now, before)) if before != 0.0 => {
                format!("{before:.2} ({:+.1} %)", (now / before - 1.0) * 100.0)
            }
            _ => String::new(),
        }
    }
}
