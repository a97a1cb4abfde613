//! Writes the site: everything into a folder beside the target, then one rename. A reader of the target sees the old
//! site or the new one, never half of either.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::assets::ASSETS;
use crate::error::ReportError;
use crate::language::{Language, Texts};
use crate::page;
use crate::render::{Place, Renderer, Translation};
use crate::source::Source;

/// The file that marks a folder as a site made by deltamux; only such a folder (or an empty one) is replaced.
pub const MARKER_FILE: &str = ".deltamux-site.json";

/// What to build.
#[derive(Debug, Clone)]
pub struct BuildOptions {
    /// Folders of run bundles; one that is named twice is taken once.
    pub bundles: Vec<PathBuf>,
    /// Folder of the site.
    pub out: PathBuf,
    /// The only language, or all of them: the first at the root, the others in folders named by their tags.
    pub language: Option<Language>,
}

/// A site that was built.
#[derive(Debug, Clone, Serialize)]
pub struct Site {
    /// Its start page.
    pub index: PathBuf,
    /// Its languages, the one at the root first.
    pub languages: Vec<Language>,
    /// Its runs in the order of the bundles.
    pub runs: Vec<BuiltRun>,
}

/// A run of a site.
#[derive(Debug, Clone, Serialize)]
pub struct BuiltRun {
    /// Run id.
    pub id: String,
    /// Its page in the first language.
    pub page: PathBuf,
    /// `validated` or `unvalidated`.
    pub status: &'static str,
    /// Why it is unvalidated.
    pub reasons: Vec<String>,
}

/// Builds a site. Nothing is left behind when it fails.
pub fn build(options: &BuildOptions) -> Result<Site, ReportError> {
    if options.bundles.is_empty() {
        return Err(ReportError::NoBundles);
    }
    let target = Target::resolve(&options.out)?;
    let sources = read_all(&options.bundles)?;
    let slugs = slugs(sources.iter().map(|source| source.run.id.as_str()));
    let languages = options
        .language
        .map_or_else(|| Language::ALL.to_vec(), |only| vec![only]);

    let staging = tempfile::Builder::new()
        .prefix(".deltamux-site-")
        .tempdir_in(&target.parent)?;
    // Not the temporary folder itself: that one is closed to everyone else, which a web server must not inherit.
    let root = staging.path().join("site");
    let writer = Writer { root: &root };
    for asset in ASSETS {
        writer.write(&format!("assets/{}", asset.path), asset.bytes)?;
    }
    for (source, slug) in sources.iter().zip(&slugs) {
        for file in source.files.iter().filter(|file| file.bytes.is_some()) {
            writer.copy(&source.dir.join(file.name), &format!("bundles/{slug}/{}", file.name))?;
        }
    }
    for (index, language) in languages.iter().enumerate() {
        write_language(&writer, &languages, index, *language, &sources, &slugs)?;
    }
    let marker = serde_json::json!({ "generator": "deltamux report", "version": env!("CARGO_PKG_VERSION") });
    writer.write(MARKER_FILE, marker.to_string().as_bytes())?;
    target.replace_with(&root, staging.path())?;

    let runs = sources
        .iter()
        .zip(&slugs)
        .map(|(source, slug)| BuiltRun {
            id: source.run.id.clone(),
            page: options.out.join("runs").join(format!("{slug}.html")),
            status: if source.verdict.validated {
                "validated"
            } else {
                "unvalidated"
            },
            reasons: source.verdict.reasons.clone(),
        })
        .collect();
    Ok(Site {
        index: options.out.join("index.html"),
        languages,
        runs,
    })
}

/// Reads each bundle once, however often it is named.
fn read_all(bundles: &[PathBuf]) -> Result<Vec<Source>, ReportError> {
    let mut seen = BTreeSet::new();
    let mut sources = Vec::new();
    for dir in bundles {
        let canonical = fs_err::canonicalize(dir).map_err(|e| ReportError::Unreadable {
            path: dir.clone(),
            reason: e.to_string(),
        })?;
        if seen.insert(canonical) {
            sources.push(Source::read(dir)?);
        }
    }
    Ok(sources)
}

fn write_language(
    writer: &Writer<'_>,
    languages: &[Language],
    index: usize,
    language: Language,
    sources: &[Source],
    slugs: &[String],
) -> Result<(), ReportError> {
    let texts = Texts::load(language)?;
    let renderer = Renderer::new(texts.clone())?;
    // The first language stands at the root.
    let folder = |at: usize| {
        if at == 0 {
            String::new()
        } else {
            format!("{}/", languages[at].tag())
        }
    };
    let own = folder(index);
    let up = |levels: usize| "../".repeat(levels + usize::from(index > 0));
    let place = |levels: usize, page: &str| -> Result<Place, ReportError> {
        let mut translations = Vec::new();
        for (at, other) in languages.iter().enumerate().filter(|(at, _)| *at != index) {
            translations.push(Translation {
                language: *other,
                name: Texts::load(*other)?.get("site.language"),
                href: format!("{}{}{page}", up(levels), folder(at)),
            });
        }
        Ok(Place {
            root: up(levels),
            home: format!("{}index.html", "../".repeat(levels)),
            translations,
        })
    };

    let listed: Vec<(String, &Source)> = sources
        .iter()
        .zip(slugs)
        .map(|(source, slug)| (format!("runs/{slug}.html"), source))
        .collect();
    let index_page = renderer.index(&page::overview(&texts, &listed), &place(0, "index.html")?)?;
    writer.write(&format!("{own}index.html"), index_page.as_bytes())?;
    for (source, slug) in sources.iter().zip(slugs) {
        let file = format!("runs/{slug}.html");
        let raw = format!("{}bundles/{slug}", up(1));
        let html = renderer.run(&page::run_page(&texts, source, &raw), &place(1, &file)?)?;
        writer.write(&format!("{own}{file}"), html.as_bytes())?;
    }
    Ok(())
}

/// File names for run ids: ids come from bundles and may hold anything. Two that would share a name are numbered.
fn slugs<'a>(ids: impl Iterator<Item = &'a str>) -> Vec<String> {
    const LONGEST: usize = 100;
    let mut taken = BTreeSet::new();
    ids.map(|id| {
        let cleaned: String = id
            .chars()
            .take(LONGEST)
            .map(|c| {
                if c.is_ascii_alphanumeric() || "-_.".contains(c) {
                    c
                } else {
                    '-'
                }
            })
            .collect();
        let cleaned = cleaned.trim_matches(['.', '-']);
        let stem = if cleaned.is_empty() { "run" } else { cleaned };
        // Some file systems do not tell upper from lower case.
        let free = (1..)
            .map(|n| if n == 1 { stem.to_owned() } else { format!("{stem}-{n}") })
            .find(|name| taken.insert(name.to_ascii_lowercase()));
        free.unwrap_or_default()
    })
    .collect()
}

struct Writer<'a> {
    root: &'a Path,
}

impl Writer<'_> {
    fn path(&self, relative: &str) -> Result<PathBuf, ReportError> {
        let path = self.root.join(relative);
        if let Some(parent) = path.parent() {
            fs_err::create_dir_all(parent)?;
        }
        Ok(path)
    }

    fn write(&self, relative: &str, bytes: &[u8]) -> Result<(), ReportError> {
        use std::io::Write as _;
        let mut file = fs_err::File::create(self.path(relative)?)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(())
    }

    fn copy(&self, from: &Path, relative: &str) -> Result<(), ReportError> {
        let mut source = fs_err::File::open(from)?;
        let mut file = fs_err::File::create(self.path(relative)?)?;
        std::io::copy(&mut source, &mut file)?;
        file.sync_all()?;
        Ok(())
    }
}

/// The folder that a site goes to.
struct Target {
    path: PathBuf,
    parent: PathBuf,
}

impl Target {
    /// Follows links, and refuses a folder that holds anything but a site of ours.
    fn resolve(out: &Path) -> Result<Self, ReportError> {
        let no_parent = || ReportError::NoParent { path: out.to_owned() };
        let path = match fs_err::canonicalize(out) {
            Ok(existing) => {
                let ours = existing.join(MARKER_FILE).is_file();
                let empty = existing.is_dir() && fs_err::read_dir(&existing)?.next().is_none();
                if !ours && !empty {
                    return Err(ReportError::NotOurs { path: out.to_owned() });
                }
                existing
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let name = out.file_name().ok_or_else(no_parent)?;
                let parent = match out.parent() {
                    Some(parent) if parent != Path::new("") => parent,
                    _ => Path::new("."),
                };
                fs_err::create_dir_all(parent)?;
                fs_err::canonicalize(parent)?.join(name)
            }
            Err(e) => return Err(e.into()),
        };
        let parent = path.parent().ok_or_else(no_parent)?.to_owned();
        Ok(Self { path, parent })
    }

    /// Puts `site` in the target's place; what stood there goes into `staging`, which is removed later, and comes back
    /// if the second rename fails.
    fn replace_with(&self, site: &Path, staging: &Path) -> Result<(), ReportError> {
        let retired = staging.join("retired");
        let existed = self.path.exists();
        if existed {
            fs_err::rename(&self.path, &retired)?;
        }
        if let Err(error) = fs_err::rename(site, &self.path) {
            if existed {
                fs_err::rename(&retired, &self.path)?;
            }
            return Err(error.into());
        }
        // The rename itself must survive a power cut.
        fs_err::File::open(&self.parent)?.sync_all()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_ids_become_safe_and_distinct_file_names() {
        let ids = [
            "../../etc/passwd",
            "run 1",
            "run-1",
            "RUN-1",
            "",
            "..",
            "a".repeat(300).as_str(),
        ]
        .map(str::to_owned);
        let names = slugs(ids.iter().map(String::as_str));
        assert_eq!(
            names[..6],
            ["etc-passwd", "run-1", "run-1-2", "RUN-1-3", "run", "run-2"].map(str::to_owned)
        );
        assert_eq!(names[6].len(), 100);
    }

    #[test]
    fn a_folder_that_is_no_site_of_ours_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("precious");
        fs_err::create_dir_all(&out).unwrap();
        fs_err::write(out.join("thesis.txt"), "x").unwrap();
        assert!(matches!(Target::resolve(&out), Err(ReportError::NotOurs { .. })));
        assert!(out.join("thesis.txt").is_file());
    }

    #[test]
    fn a_site_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("site");
        for (round, leftover) in [("first", None), ("second", Some("old.html"))] {
            let target = Target::resolve(&out).unwrap();
            let staging = tempfile::tempdir_in(&target.parent).unwrap();
            let fresh = staging.path().join("site");
            let writer = Writer { root: &fresh };
            writer.write(MARKER_FILE, b"{}").unwrap();
            writer
                .write(if round == "first" { "old.html" } else { "new.html" }, round.as_bytes())
                .unwrap();
            target.replace_with(&fresh, staging.path()).unwrap();
            if let Some(old) = leftover {
                assert!(!out.join(old).exists());
            }
        }
        assert_eq!(fs_err::read_to_string(out.join("new.html")).unwrap(), "second");
        assert_eq!(
            fs_err::read_dir(dir.path()).unwrap().count(),
            1,
            "nothing is left beside the site"
        );
    }
}
