//! The PTX text of a module: launch bounds put in, and each entry cut out with what it needs.

use std::collections::{BTreeMap, BTreeSet};

/// Launch bounds of an entry, as `#[kernel]` notes them in the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Threads of a block.
    pub max_threads: Option<u32>,
    /// Blocks that must fit on a multiprocessor.
    pub min_blocks: Option<u32>,
    /// Blocks of a cluster.
    pub cluster: Option<u32>,
}

/// What an item at the top level of a module is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Entry,
    Function,
    Variable,
}

/// One item at the top level of a module.
#[derive(Clone, Debug)]
struct Item<'a> {
    kind: Kind,
    name: &'a str,
    /// Without comments: they take a third of the room and may name what the code does not need.
    text: String,
}

/// A module's text, taken apart.
#[derive(Clone, Debug)]
pub struct Module<'a> {
    version: &'a str,
    target: &'a str,
    header: Vec<&'a str>,
    items: Vec<Item<'a>>,
    bounds: BTreeMap<&'a str, Bounds>,
}

impl<'a> Module<'a> {
    /// Takes a module's text apart. What is not PTX comes out as a module without a version and entries, which the
    /// checks refuse.
    pub fn parse(text: &'a str) -> Self {
        let mut module =
            Module { version: "", target: "", header: Vec::new(), items: Vec::new(), bounds: notes(text) };
        for statement in statements(text) {
            let (directive, rest) = statement.split_once(char::is_whitespace).unwrap_or((statement, ""));
            match directive {
                ".version" => module.version = rest.trim(),
                ".target" => module.target = rest.trim(),
                _ => {}
            }
            if matches!(directive, ".version" | ".target" | ".address_size") {
                module.header.push(statement);
            } else if let Some(item) = item(statement) {
                module.items.push(item);
            }
        }
        module
    }

    /// The PTX version, as `.version` says it.
    pub fn version(&self) -> &'a str {
        self.version
    }

    /// The architecture, as `.target` says it.
    pub fn target(&self) -> &'a str {
        self.target
    }

    /// Names of the entries, in the order of the text.
    pub fn entries(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.items.iter().filter(|item| item.kind == Kind::Entry).map(|item| item.name)
    }

    /// The launch bounds that an entry's `#[kernel]` noted.
    pub fn bounds(&self, entry: &str) -> Bounds {
        self.bounds.get(entry).copied().unwrap_or_default()
    }

    /// Functions that are called but not defined: a loader could not resolve them.
    pub fn unresolved(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.items
            .iter()
            .filter(|item| item.kind == Kind::Function && item.text.starts_with(".extern"))
            .map(|item| item.name)
    }

    /// A self-contained text of one entry, with its launch bounds as directives: the header, the entry, and what it
    /// names directly or through others.
    pub fn split(&self, entry: &str) -> Option<String> {
        let root = self.items.iter().position(|item| item.kind == Kind::Entry && item.name == entry)?;
        let by_name: BTreeMap<&str, usize> =
            self.items.iter().enumerate().map(|(index, item)| (item.name, index)).collect();
        let mut needed = BTreeSet::from([root]);
        let mut open = vec![root];
        while let Some(index) = open.pop() {
            for word in identifiers(&self.items[index].text) {
                if let Some(&other) = by_name.get(word)
                    && needed.insert(other)
                {
                    open.push(other);
                }
            }
        }
        let mut text = String::from("// Flash attention kernel, compiled from Rust by rustc.\n");
        for line in &self.header {
            text += line;
            text.push('\n');
        }
        for &index in &needed {
            text.push('\n');
            match index == root {
                true => text += &with_bounds(&self.items[index], self.bounds(entry)),
                false => text += &self.items[index].text,
            }
            text.push('\n');
        }
        Some(text)
    }

    /// The whole module with its launch bounds as directives.
    pub fn whole(&self) -> String {
        let mut text = self.header.join("\n");
        for item in &self.items {
            text += "\n\n";
            match item.kind {
                Kind::Entry => text += &with_bounds(item, self.bounds(item.name)),
                _ => text += &item.text,
            }
        }
        text.push('\n');
        text
    }
}

/// The entry's text with the directives that Rust cannot write, after the parameter list.
fn with_bounds(entry: &Item<'_>, bounds: Bounds) -> String {
    let Some(end) = entry.text.find('(').and_then(|start| Some(start + closing(&entry.text[start..])?))
    else {
        return entry.text.clone();
    };
    let (head, body) = entry.text.split_at(end + 1);
    let present = body.split('{').next().unwrap_or_default();
    let mut directives = String::new();
    let mut add = |name: &str, value: String| {
        if !present.contains(name) {
            directives += &format!("\n{name}{value}");
        }
    };
    if let Some(blocks) = bounds.cluster {
        add(".explicitcluster", String::new());
        add(".reqnctapercluster", format!(" {blocks}, 1, 1"));
    }
    if let Some(threads) = bounds.max_threads {
        add(".maxntid", format!(" {threads}, 1, 1"));
    }
    if let Some(blocks) = bounds.min_blocks {
        add(".minnctapersm", format!(" {blocks}"));
    }
    // A kernel that takes the address of its parameters hands it to TMA, whose tensor maps lie on 64 bytes; rustc
    // cannot align a parameter to more than 16.
    let parameter = format!("{}_param_0", entry.name);
    let takes_address = body.contains(&format!(", {parameter};"));
    let head = match takes_address {
        true => head.replace(&format!(".align 8 .b8 {parameter}["), &format!(".align 64 .b8 {parameter}[")),
        false => head.to_owned(),
    };
    format!("{head}{directives}{body}")
}

/// Where the parenthesis closes that opens the text.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.bytes().position(|byte| {
        match byte {
            b'(' => depth += 1,
            b')' => depth -= 1,
            _ => {}
        }
        depth == 0
    })
}

/// The notes `//@kernel NAME key=value …` of the text.
fn notes(text: &str) -> BTreeMap<&str, Bounds> {
    let mut all = BTreeMap::new();
    for note in text.lines().filter_map(|line| line.trim_start().strip_prefix("//@kernel ")) {
        let mut words = note.split_whitespace();
        let Some(name) = words.next() else { continue };
        let mut bounds = Bounds::default();
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            let value = value.parse().ok();
            match key {
                "maxntid" => bounds.max_threads = value,
                "minnctapersm" => bounds.min_blocks = value,
                "cluster" => bounds.cluster = value,
                _ => {}
            }
        }
        all.insert(name, bounds);
    }
    all
}

/// The statements at the top level: directives of a line, declarations up to `;`, functions up to their `}`.
fn statements(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let mut all = Vec::new();
    let mut start: Option<usize> = None;
    let mut depth = 0;
    let mut at = 0;
    while at < bytes.len() {
        if !text.is_char_boundary(at) {
            at += 1;
            continue;
        }
        if let Some(length) = skipped(&text[at..]) {
            at += length;
            continue;
        }
        let byte = bytes[at];
        if start.is_none() && !byte.is_ascii_whitespace() {
            start = Some(at);
        }
        if let Some(begin) = start {
            let so_far = &text[begin..at];
            let ends_with_line = [".version", ".target", ".address_size", ".file"];
            let (end, with_byte) = match byte {
                b'{' => {
                    depth += 1;
                    (false, true)
                }
                b'}' => {
                    depth -= 1;
                    let block = [".entry", ".func", ".section"].iter().any(|word| so_far.contains(word));
                    (depth == 0 && block, true)
                }
                b';' => (depth == 0, true),
                b'\n' => (ends_with_line.iter().any(|word| so_far.starts_with(word)), false),
                _ => (false, true),
            };
            if end {
                all.push(text[begin..at + usize::from(with_byte)].trim());
                start = None;
            }
        }
        at += 1;
    }
    all
}

/// Length of a comment or a string that begins here.
fn skipped(text: &str) -> Option<usize> {
    let rest = text.len();
    if text.starts_with("//") {
        Some(text.find('\n').unwrap_or(rest))
    } else if text.starts_with("/*") {
        Some(text.find("*/").map_or(rest, |end| end + 2))
    } else {
        let string = text.strip_prefix('"')?;
        Some(string.find('"').map_or(rest, |end| end + 2))
    }
}

/// The text without comments and without the lines that they leave empty.
fn uncommented(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let step = skipped(&text[at..]).unwrap_or(first.len_utf8());
        if first != '/' || step == 1 {
            code += &text[at..at + step];
        }
        at += step;
    }
    let lines: Vec<&str> = code.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines.join("\n")
}

fn item(statement: &str) -> Option<Item<'_>> {
    let head = statement.split('{').next().unwrap_or_default();
    if let Some((_, rest)) = head.split_once(".entry") {
        return Some(Item {
            kind: Kind::Entry,
            name: identifiers(rest).next()?,
            text: uncommented(statement),
        });
    }
    if let Some((_, rest)) = head.split_once(".func") {
        let rest = rest.trim_start();
        // The return value's declaration stands before the name.
        let rest = if rest.starts_with('(') { &rest[closing(rest)? + 1..] } else { rest };
        return Some(Item {
            kind: Kind::Function,
            name: identifiers(rest).next()?,
            text: uncommented(statement),
        });
    }
    if [".global", ".const", ".shared"].iter().any(|space| head.contains(space)) {
        let declared = head.split(['[', '=', ';']).next()?;
        return Some(Item {
            kind: Kind::Variable,
            name: identifiers(declared).last()?,
            text: uncommented(statement),
        });
    }
    None
}

/// The identifiers of a text; directives (`.b8`) and registers (`%r1`) are none.
fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.' | '%');
    text.split(move |c: char| !part(c))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '$')))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"//
// Generated by LLVM NVPTX Back-End
//

.version 8.3
.target sm_90a
.address_size 64

	// .globl	first                   // -- Begin function first
	// begin inline asm
	.extern .shared .align 1024 .b8 dynamic_shared[];
	// end inline asm
	// begin inline asm
	//@kernel first maxntid=384 minnctapersm=1 cluster=2
	// end inline asm
	//@kernel second maxntid=128
.extern .shared .align 16 .b8 other_shared[];
.global .align 4 .b8 table_$1[8] = {1, 2, 3, 4, 5, 6, 7, 8};
.global .align 8 .u64 pointer = table_$1;
.func (.param .b32 func_retval0) helper(
	.param .b32 helper_param_0
)
{
	ret;
}
.visible .entry first(
	.param .align 8 .b8 first_param_0[200]
)
{
	.reg .b64 	%rd<3>;
	mov.b64 %rd1, first_param_0; cvta.param.u64 %rd1, %rd1;
	mov.u32 %r1, dynamic_shared; // not second, "other_shared" or }
	mov.u64 %rd2, pointer;
	{ .reg .pred p; }
	ret;
                                        // -- End function
}
.visible .entry second(
	.param .align 8 .b8 second_param_0[16],
	.param .u32 second_param_1
)
.minnctapersm 3
{
	ld.param.b64 %rd1, [second_param_0];
	call.uni (retval0), helper, (param0);
	mov.u32 %r1, other_shared;
	ret;
}
"#;

    #[test]
    fn a_module_is_taken_apart() {
        let module = Module::parse(TEXT);
        assert_eq!((module.version(), module.target()), ("8.3", "sm_90a"));
        assert_eq!(module.entries().collect::<Vec<_>>(), ["first", "second"]);
        assert_eq!(
            module.bounds("first"),
            Bounds { max_threads: Some(384), min_blocks: Some(1), cluster: Some(2) }
        );
        assert_eq!(module.bounds("none"), Bounds::default());
        assert_eq!(module.unresolved().count(), 0);
    }

    #[test]
    fn an_entry_comes_with_exactly_what_it_names() {
        let module = Module::parse(TEXT);
        let first = module.split("first").unwrap();
        for needed in [
            ".version 8.3\n",
            ".target sm_90a\n",
            ".address_size 64\n",
            "b8 dynamic_shared[];",
            "b8 table_$1[8] = {1",
        ] {
            assert!(first.contains(needed), "{needed}\n{first}");
        }
        for foreign in ["second", "other_shared", "helper", "//@kernel"] {
            assert!(!first.contains(foreign), "{foreign}\n{first}");
        }
        let second = module.split("second").unwrap();
        assert!(second.contains(".func (.param .b32 func_retval0) helper("));
        assert!(second.contains("b8 other_shared[];"));
        assert!(!second.contains("dynamic_shared") && !second.contains("pointer"));
        assert_eq!(module.split("third"), None);
        // A part is a module like any other.
        assert_eq!(Module::parse(&second).entries().collect::<Vec<_>>(), ["second"]);
    }

    #[test]
    fn launch_bounds_follow_the_parameters() {
        let module = Module::parse(TEXT);
        assert!(module.split("first").unwrap().contains(
            "[200]\n)\n.explicitcluster\n.reqnctapercluster 2, 1, 1\n.maxntid 384, 1, 1\n.minnctapersm 1\n{"
        ));
        assert!(
            module
                .split("second")
                .unwrap()
                .contains("second_param_1\n)\n.maxntid 128, 1, 1\n.minnctapersm 3\n{")
        );
        assert!(module.whole().contains(".maxntid 384") && module.whole().contains(".maxntid 128"));
    }

    #[test]
    fn parameters_whose_address_is_taken_are_aligned_for_tensor_maps() {
        let module = Module::parse(TEXT);
        assert!(module.split("first").unwrap().contains(".param .align 64 .b8 first_param_0[200]"));
        assert!(module.split("second").unwrap().contains(".param .align 8 .b8 second_param_0[16]"));
    }

    #[test]
    fn what_is_not_ptx_has_no_entries() {
        for text in ["", "ELF {{{ ;;; }}} \"", ".visible .entry", "/* open", "// only", "täglich; ÄÖ{}"] {
            let module = Module::parse(text);
            assert_eq!((module.version(), module.entries().count()), ("", 0), "{text}");
        }
    }
}
