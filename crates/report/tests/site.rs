//! What a site is, from bundles to files.

mod synthetic;

use std::path::{Path, PathBuf};

use deltamux_bench::bundle::{Bundle, EVENTS_FILE, RUN_FILE};
use deltamux_report::{BuildOptions, Language, MARKER_FILE, ReportError, build};
use synthetic::Identity;

const HOSTILE: &str = "</script><script>alert('x')</script>\"><img src=x onerror=alert(1)>";

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn write(&self, bundle: &Bundle) -> PathBuf {
        bundle.write(&self.dir.path().join("runs")).unwrap()
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("site")
    }

    fn options(&self, bundles: &[PathBuf]) -> BuildOptions {
        BuildOptions {
            bundles: bundles.to_vec(),
            out: self.out(),
            language: None,
        }
    }

    fn page(&self, path: &str) -> String {
        fs_err::read_to_string(self.out().join(path)).unwrap()
    }
}

fn identity<'a>(id: &'a str, models: &'a [&'a str]) -> Identity<'a> {
    Identity {
        id,
        label: "PrinMix",
        models,
        started_at: "2026-11-30T09:15:00Z",
    }
}

fn arrivals(id: &str) -> Bundle {
    synthetic::arrivals(&identity(id, &["route", "sql"]), &[1.0, 4.0], 12)
}

/// Every file below `dir`, by its path from there.
fn files(dir: &Path) -> Vec<String> {
    let mut out = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs_err::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                out.push(path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    out.sort();
    out
}

#[test]
fn a_site_has_a_list_and_a_page_for_each_run_in_both_languages() {
    let bench = Bench::new();
    let a = bench.write(&arrivals("a"));
    let b = bench.write(&synthetic::concurrency(&identity("b", &["route"]), &[1, 2]));
    let site = build(&bench.options(&[a.clone(), b, a])).unwrap();

    assert_eq!(site.languages, [Language::En, Language::De]);
    assert_eq!(site.index, bench.out().join("index.html"));
    let ids: Vec<&str> = site.runs.iter().map(|run| run.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"], "a bundle named twice is one run");
    for run in &site.runs {
        assert_eq!((run.status, run.reasons.len()), ("validated", 0));
        assert!(run.page.is_file());
    }
    let files = files(&bench.out());
    for page in [
        "index.html",
        "runs/a.html",
        "runs/b.html",
        "de/index.html",
        "de/runs/a.html",
        "de/runs/b.html",
    ] {
        assert!(files.iter().any(|file| file == page), "{page} in {files:?}");
    }
    assert!(bench.page("index.html").contains("href=\"runs&#x2f;a.html\""));
    assert!(bench.page("runs/a.html").contains("lang=\"en\""));
    assert!(bench.page("de/runs/a.html").contains("nicht gemessen"));
}

#[test]
fn every_link_of_every_page_leads_to_a_file_of_the_site() {
    let bench = Bench::new();
    build(&bench.options(&[bench.write(&arrivals("a"))])).unwrap();
    let pages: Vec<String> = files(&bench.out())
        .into_iter()
        .filter(|file| file.ends_with(".html"))
        .collect();
    assert_eq!(pages.len(), 4);
    for page in pages {
        let html = bench.page(&page);
        let folder = bench.out().join(&page).parent().unwrap().to_owned();
        let mut seen = 0;
        for part in html.split("href=\"").skip(1).chain(html.split("src=\"").skip(1)) {
            let link = part.split('"').next().unwrap().replace("&#x2f;", "/");
            if link.starts_with(['#', 'd']) && !link.starts_with("de/") {
                continue; // The same page, or data.
            }
            assert!(folder.join(&link).is_file(), "{page}: {link}");
            seen += 1;
        }
        assert!(seen > 5, "{page}");
    }
}

#[test]
fn nothing_is_loaded_from_elsewhere() {
    let bench = Bench::new();
    build(&bench.options(&[bench.write(&arrivals("a"))])).unwrap();
    for file in files(&bench.out()) {
        if file.ends_with(".html") || file.ends_with(".css") {
            let text = bench.page(&file);
            for scheme in [
                "href=\"http",
                "src=\"http",
                "href=\"//",
                "src=\"//",
                "url(http",
                "url(\"http",
                "@import",
            ] {
                assert!(!text.contains(scheme), "{file} has {scheme}");
            }
        }
    }
}

#[test]
fn names_in_a_bundle_are_text_wherever_they_stand() {
    let bench = Bench::new();
    let mut bundle = synthetic::arrivals(&identity("a", &[HOSTILE]), &[1.0], 6);
    bundle.run.label = Some(HOSTILE.into());
    bundle.run.engine.device = Some(HOSTILE.into());
    bundle.run.command.push(HOSTILE.into());
    bundle.environment.os = Some(HOSTILE.into());
    build(&bench.options(&[bench.write(&bundle)])).unwrap();
    for page in ["index.html", "runs/a.html", "de/index.html", "de/runs/a.html"] {
        let html = bench.page(page);
        assert!(html.contains("onerror"), "{page} shows the name");
        assert!(!html.contains("<img"), "{page}");
        assert!(!html.contains("<script>alert"), "{page}");
        // Every script element is one of ours: a file, or JSON that ends where we end it.
        for part in html.split("<script").skip(1) {
            let (head, body) = part.split_once('>').unwrap();
            assert!(
                head.contains("src=") || head.contains("application/json"),
                "{page}: <script{head}>"
            );
            if head.contains("application/json") {
                let json = body.split("</script>").next().unwrap();
                serde_json::from_str::<serde_json::Value>(json).unwrap();
            }
        }
    }
}

#[test]
fn a_bundle_that_was_changed_is_shown_as_unvalidated_with_its_reasons() {
    let bench = Bench::new();
    let dir = bench.write(&arrivals("a"));
    let summary = dir.join(RUN_FILE);
    let text = fs_err::read_to_string(&summary).unwrap();
    fs_err::write(&summary, text.replacen("\"seed\": 7", "\"seed\": 8", 1)).unwrap();
    let site = build(&bench.options(&[dir])).unwrap();
    assert_eq!(site.runs[0].status, "unvalidated");
    assert!(!site.runs[0].reasons.is_empty());
    let page = bench.page("runs/a.html");
    assert!(page.contains("status unvalidated"));
    assert!(!page.contains("status validated"));
    assert!(page.contains("Why this run is unvalidated"));
    assert!(bench.page("index.html").contains("status unvalidated"));
}

#[test]
fn a_run_whose_events_are_damaged_keeps_its_page_and_says_so() {
    let bench = Bench::new();
    let dir = bench.write(&arrivals("a"));
    fs_err::write(dir.join(EVENTS_FILE), b"PAR1 but no more").unwrap();
    let site = build(&bench.options(&[dir])).unwrap();
    assert_eq!(site.runs[0].status, "unvalidated");
    assert!(bench.page("runs/a.html").contains("The raw events cannot be read"));
}

#[test]
fn what_was_not_measured_is_said_and_never_zero() {
    let bench = Bench::new();
    let mut bundle = arrivals("a");
    bundle.run.points.clear();
    bundle.run.knee = None;
    bundle.run.engine = Default::default();
    build(&bench.options(&[bench.write(&bundle)])).unwrap();
    let page = bench.page("runs/a.html");
    assert!(page.contains("This run holds no measured point."));
    assert!(page.contains("not stated"));
    let figures = page
        .split("<dl class=\"figures\">")
        .nth(1)
        .unwrap()
        .split("</dl>")
        .next()
        .unwrap();
    assert!(
        !figures.contains(|c: char| c.is_ascii_digit() && c != '9' && c != '5' && c != '0'),
        "{figures}"
    );
    assert!(!figures.contains("unit"), "no headline has a number: {figures}");
    assert!(bench.page("index.html").contains("not measured"));
}

#[test]
fn a_point_that_the_client_was_late_for_stays_on_the_page_but_stands_for_nothing() {
    let bench = Bench::new();
    let mut bundle = synthetic::arrivals(&identity("a", &["route"]), &[1.0, 4.0], 12);
    bundle.run.points[1].valid = false;
    bundle.run.points[1].invalid = vec!["repeat 1: the client sent late".into()];
    build(&bench.options(&[bench.write(&bundle)])).unwrap();
    let page = bench.page("runs/a.html");
    assert!(page.contains("Offered rate 4\u{a0}req&#x2f;s is invalid: repeat 1: the client sent late"));
    assert!(page.contains("at 1 req&#x2f;s offered") && !page.contains("at 4 req&#x2f;s offered"));
    assert!(page.contains("<tr class=\"flagged\">"));
    assert!(!bench.page("index.html").contains("at 4 req&#x2f;s offered"));
}

/// The text of the cells of a table of a page, row by row.
fn cells(page: &str, table: &str) -> Vec<Vec<String>> {
    let table = page.split(&format!("id=\"table-{table}\"")).nth(1).unwrap();
    let body = table.split("<tbody>").nth(1).unwrap().split("</tbody>").next().unwrap();
    let text = |cell: &str| {
        let cell = cell.split_once('>').unwrap().1;
        let cell = cell.split("</t").next().unwrap();
        let bare: String = cell.split('<').map(|part| part.rsplit('>').next().unwrap()).collect();
        bare.replace('\u{a0}', " ")
    };
    body.split("<tr")
        .skip(1)
        .map(|row| row.split("<t").skip(1).map(text).collect())
        .collect()
}

#[test]
fn quality_has_a_chapter_with_every_figure_and_what_is_absent() {
    let bench = Bench::new();
    let models = ["sql", "date"];
    let bundle = synthetic::quality(&identity("q", &models), 40);
    let site = build(&bench.options(&[bench.write(&bundle), bench.write(&arrivals("a"))])).unwrap();
    assert_eq!(site.runs[0].reasons, Vec::<String>::new());
    let scores = bundle.run.quality.unwrap().scores;
    let share = |i: usize| format!("{:.1}", 100.0 * scores[i].exact_match.unwrap().share);

    let page = bench.page("runs/q.html");
    let rows = cells(&page, "exact-match");
    assert_eq!(rows[0][..5], ["sql", "sql.jsonl", "bf16", "3 MiB", share(0).as_str()]);
    assert_eq!(
        (rows[1][4].as_str(), rows[0][9].as_str(), rows[1][9].as_str()),
        (share(1).as_str(), "1", "0")
    );
    let rows = cells(&page, "divergence");
    // 0.015625 over four tokens, three of them the same.
    assert_eq!(rows[0][4..7], ["full", "0.00391", "75"]);
    assert_eq!(rows[1][5..9], ["not measured"; 4]);
    assert!(page.contains("sql · sql.jsonl: 1 of 40 requests failed; they are neither right nor wrong."));
    assert!(page.contains("date · sql.jsonl: Mean KL was not measured: no fine-tune was given."));
    let rows = cells(&page, "not-right");
    assert_eq!((rows[0][0].as_str(), rows[0][4].as_str()), ("sql", "timeout"));
    assert_eq!(rows[1][3..], ["SELECT 1;", "SELECT 2;"]);
    let spec = page
        .split("id=\"spec-exact-match\">")
        .nth(1)
        .unwrap()
        .split("</script>")
        .next()
        .unwrap();
    let spec: serde_json::Value = serde_json::from_str(spec).unwrap();
    assert_eq!(
        spec["x"]["names"],
        serde_json::json!(["sql · sql.jsonl", "date · sql.jsonl"])
    );
    assert_eq!(
        (
            &spec["series"][1]["style"],
            spec["series"][1]["points"].as_array().unwrap().len()
        ),
        (&"range".into(), 4)
    );
    let best = if scores[1].correct * scores[0].answered > scores[0].correct * scores[1].answered {
        1
    } else {
        0
    };
    assert!(bench.page("index.html").contains(&format!("{}%", share(best))));

    let german = bench.page("de/runs/q.html");
    assert_eq!(cells(&german, "exact-match")[0][4], share(0).replace('.', ","));
    assert!(german.contains("Mittlere KL nicht gemessen"));
    // Another profile keeps the chapter and says so.
    assert!(
        bench
            .page("runs/a.html")
            .contains("Not measured: this run holds no evaluation.")
    );
}

#[test]
fn a_quality_run_without_answers_has_no_share_and_no_chart() {
    let bench = Bench::new();
    let mut bundle = synthetic::quality(&identity("q", &["sql"]), 1);
    bundle.run.models[0].bytes = None;
    build(&bench.options(&[bench.write(&bundle)])).unwrap();
    let page = bench.page("runs/q.html");
    assert!(page.contains("Not measured: no request was answered."));
    assert!(page.contains("the server does not say what its models take in memory"));
    assert!(!page.contains("spec-exact-match") && !page.contains("0.0%"));
    assert!(page.contains("sql · sql.jsonl: Exact match was not measured: no request was answered."));
}

#[test]
fn a_folder_without_a_summary_is_refused_and_nothing_is_written() {
    let bench = Bench::new();
    let good = bench.write(&arrivals("a"));
    let empty = bench.dir.path().join("empty");
    fs_err::create_dir_all(&empty).unwrap();
    for bad in [empty, bench.dir.path().join("absent")] {
        let error = build(&bench.options(&[good.clone(), bad.clone()])).unwrap_err();
        assert!(
            matches!(&error, ReportError::Unreadable { path, .. } if *path == bad),
            "{error}"
        );
        assert!(!error.is_internal());
        assert!(!bench.out().exists());
    }
}

#[test]
fn a_site_is_rebuilt_in_place_and_another_folder_is_left_alone() {
    let bench = Bench::new();
    let a = bench.write(&arrivals("a"));
    build(&bench.options(std::slice::from_ref(&a))).unwrap();
    let b = bench.write(&arrivals("b"));
    build(&BuildOptions {
        language: Some(Language::De),
        ..bench.options(&[b])
    })
    .unwrap();
    let files = files(&bench.out());
    assert!(files.iter().any(|file| file == "runs/b.html") && files.iter().any(|file| file == MARKER_FILE));
    assert!(
        !files
            .iter()
            .any(|file| file == "runs/a.html" || file.starts_with("de/")),
        "{files:?}"
    );
    assert!(bench.page("index.html").contains("lang=\"de\""));

    fs_err::remove_file(bench.out().join(MARKER_FILE)).unwrap();
    let error = build(&bench.options(&[a])).unwrap_err();
    assert!(matches!(error, ReportError::NotOurs { .. }), "{error}");
    assert!(bench.out().join("runs/b.html").is_file());
}

#[test]
fn the_raw_bundle_travels_with_the_site_byte_for_byte() {
    let bench = Bench::new();
    let dir = bench.write(&arrivals("a"));
    build(&bench.options(std::slice::from_ref(&dir))).unwrap();
    let copy = bench.out().join("bundles/a");
    assert_eq!(files(&copy), files(&dir));
    for file in files(&dir) {
        assert_eq!(
            fs_err::read(copy.join(&file)).unwrap(),
            fs_err::read(dir.join(&file)).unwrap(),
            "{file}"
        );
    }
}

#[test]
fn german_pages_write_numbers_the_german_way_and_the_csv_does_not() {
    let bench = Bench::new();
    build(&bench.options(&[bench.write(&synthetic::arrivals(&identity("a", &["route"]), &[0.5], 12))])).unwrap();
    let load = |page: &str| {
        let table = bench
            .page(page)
            .split("id=\"table-arrivals-throughput\"")
            .nth(1)
            .unwrap()
            .to_owned();
        let cell = table
            .split("<tbody>")
            .nth(1)
            .unwrap()
            .split("</th>")
            .next()
            .unwrap()
            .to_owned();
        cell.rsplit('>').next().unwrap().to_owned()
    };
    assert_eq!(
        (load("runs/a.html").as_str(), load("de/runs/a.html").as_str()),
        ("0.5", "0,5")
    );
    let csv = |page: &str| {
        bench
            .page(page)
            .split("data:text")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap()
            .to_owned()
    };
    assert_eq!(csv("runs/a.html"), csv("de/runs/a.html"));
}
