//! Circles of imports: files that need one another can only be understood together.
//!
//! A file imports another when a `use` of it names that file's module, or something in it; a name
//! that a module only passes on (`pub use`) leads to where it comes from. Tests import freely.

use std::collections::{BTreeMap, BTreeSet};

use super::files;

/// So many files a person can hold in mind at once.
const MOST: usize = 5;

#[test]
fn no_circle_of_imports_is_larger_than_five_files() {
    let larger = all_circles().into_iter().filter(|circle| circle.len() > MOST);
    super::fail_with(larger.map(|circle| circle.join(" ")).collect());
}

#[test]
fn a_circle_is_found_through_names_passed_on_and_lists_of_them() {
    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let crate_files = vec![
        file("x/src/lib.rs", "mod a;\nmod b;\nmod c;\npub use a::{A, B as C};\n"),
        file("x/src/a.rs", "mod d;\nuse crate::b::{\n    self,\n    E,\n};\n"),
        file("x/src/a/d.rs", "use super::A;\n// use crate::c::F;\n"),
        file("x/src/b.rs", "use crate::{c::F, Other};\n"),
        file(
            "x/src/c.rs",
            "use crate::C;\n#[cfg(test)]\nmod tests {\n    use crate::a::d::G;\n}\n",
        ),
    ];
    let found = circles("x/src", &crate_files);
    assert_eq!(found, [["x/src/a.rs", "x/src/b.rs", "x/src/c.rs"]]);
}

/// The circles of each crate.
fn all_circles() -> Vec<Vec<String>> {
    let mut crates: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for (name, text) in files(&[".rs"]) {
        let Some((base, rest)) = name.split_once("/src/") else { continue };
        if !rest.contains("tests/") && !rest.ends_with("tests.rs") && !base.contains("quic") {
            crates.entry(format!("{base}/src")).or_default().push((name.clone(), text));
        }
    }
    assert!(crates.len() > 15, "only {} crates were found", crates.len());
    crates.iter().flat_map(|(base, files)| circles(base, files)).collect()
}

/// Where a module is below its crate's root.
type Module = Vec<String>;

/// The modules of a crate.
struct Crate {
    /// The file of each.
    files: BTreeMap<Module, String>,
    /// Names that a module passes on, each with its path as seen from that module.
    passed_on: BTreeMap<(Module, String), String>,
}

fn circles(base: &str, files: &[(String, String)]) -> Vec<Vec<String>> {
    let mut all = Crate { files: BTreeMap::new(), passed_on: BTreeMap::new() };
    let mut uses: Vec<(Module, String)> = Vec::new();
    for (name, text) in files {
        let module = module_of(&name[base.len() + 1..]);
        all.files.entry(module.clone()).or_insert_with(|| name.clone());
        for (passed_on_as, path) in used(text) {
            match passed_on_as {
                Some(own) => drop(all.passed_on.insert((module.clone(), own), path)),
                None => uses.push((module.clone(), path)),
            }
        }
    }
    let mut edges: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (module, path) in &uses {
        let Some(target) = all.resolve(module, path, 0) else { continue };
        if let (Some(from), Some(to)) = (all.files.get(module), all.files.get(&target))
            && from != to
        {
            edges.entry(from).or_default().insert(to);
        }
    }
    rings(&edges)
}

fn module_of(file: &str) -> Module {
    let parts = file.trim_end_matches(".rs").split('/');
    parts.filter(|part| !["lib", "main", "mod"].contains(part)).map(str::to_owned).collect()
}

impl Crate {
    /// The module that a path leads to from another; `None` if it leads out of the crate.
    fn resolve(&self, from: &Module, path: &str, depth: usize) -> Option<Module> {
        let mut parts = path.split("::").peekable();
        let mut at = from.clone();
        match *parts.peek()? {
            "crate" => at.clear(),
            "self" | "super" => {}
            child => {
                at.push(child.to_owned());
                if !self.files.contains_key(&at) {
                    return None;
                }
                at.pop();
            }
        }
        while let Some(part) = parts.next() {
            match part {
                "crate" | "self" => continue,
                "super" => {
                    at.pop();
                    continue;
                }
                _ => {}
            }
            at.push(part.to_owned());
            if self.files.contains_key(&at) {
                continue;
            }
            at.pop();
            let passed_on = self.passed_on.get(&(at.clone(), part.to_owned()));
            let Some(passed_on) = passed_on.filter(|_| depth < 9) else { break };
            let rest = std::iter::once(passed_on.as_str()).chain(parts).collect::<Vec<_>>();
            return self.resolve(&at, &rest.join("::"), depth + 1).or(Some(at));
        }
        Some(at)
    }
}

/// The paths that a file uses outside its tests, with the name of those that it passes on.
fn used(text: &str) -> Vec<(Option<String>, String)> {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: Vec<&str> = text.lines().map(|l| l.split("//").next().unwrap_or_default()).collect();
    let code = format!("\n{}", code.join("\n"));
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let before = code[..at].rsplit('\n').next().unwrap_or_default().trim();
        let is_statement = before.is_empty() || before == "pub" || before.starts_with("pub(");
        let (true, Some((tree, _))) = (is_statement, code[at + 4..].split_once(';')) else {
            continue;
        };
        for path in leaves("", tree) {
            let (path, own) = match path.split_once(" as ") {
                Some((path, own)) => (path, own.trim()),
                None => (path.as_str(), path.rsplit("::").next().unwrap_or_default()),
            };
            let passed_on_as = (!before.is_empty()).then(|| own.to_owned());
            found.push((passed_on_as, path.trim().to_owned()));
        }
    }
    found
}

/// `a::{b, c::{d, e as f}}` is `a::b`, `a::c::d` and `a::c::e as f`.
fn leaves(before: &str, tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((prefix, rest)) = tree.split_once('{') else {
        return if tree.is_empty() { Vec::new() } else { vec![format!("{before}{tree}")] };
    };
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let (mut depth, mut begin, mut found) = (0usize, 0, Vec::new());
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                found.extend(leaves(&format!("{before}{prefix}"), &inner[begin..at]));
                begin = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// Files that reach one another, where there is more than one.
fn rings(edges: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<Vec<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        edges.keys().map(|from| (*from, reachable(edges, from))).collect();
    let mut rings: Vec<Vec<String>> = Vec::new();
    for (from, there) in &reached {
        let back = |to: &&&str| reached.get(**to).is_some_and(|there| there.contains(from));
        let ring: Vec<String> = there.iter().filter(back).map(|to| (*to).to_owned()).collect();
        if ring.len() > 1 && ring[0] == *from {
            rings.push(ring);
        }
    }
    rings
}

fn reachable<'a>(edges: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &str) -> BTreeSet<&'a str> {
    let mut there = BTreeSet::new();
    let mut next: Vec<&str> = edges.get(from).into_iter().flatten().copied().collect();
    while let Some(file) = next.pop() {
        if there.insert(file) {
            next.extend(edges.get(file).into_iter().flatten());
        }
    }
    there
}
