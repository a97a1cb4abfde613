//! `cargo run -p deltamux-report --example synthetic_site -- DIR`: a site from simulated runs, to look at pages and for
//! the browser test. One of its runs is damaged on purpose.

#[path = "../tests/synthetic/mod.rs"]
mod synthetic;

use std::path::PathBuf;

use deltamux_report::{BuildOptions, build};
use synthetic::Identity;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(std::env::args().nth(1).ok_or("expected the site's folder")?);
    let work = tempfile::tempdir()?;
    let variants = ["route", "sql", "date", "json"];
    let rates = [0.5, 1.0, 2.0, 4.0, 6.0, 8.0];
    let day = |hour: u32| format!("2026-11-30T{hour:02}:15:00Z");
    let mut bundles = Vec::new();
    for (i, (label, hour)) in [("PrinMix", 9), ("Delta-CoMe", 10), ("Naive", 11)]
        .into_iter()
        .enumerate()
    {
        let id = format!("20261130T{hour:02}1500Z-arrivals-{i}a41");
        let identity = Identity {
            id: &id,
            label,
            models: &variants,
            started_at: &day(hour),
        };
        bundles.push(synthetic::arrivals(&identity, &rates[..6 - i], 40).write(work.path())?);
    }
    let identity = Identity {
        id: "20261130T121500Z-concurrency-77c0",
        label: "PrinMix",
        models: &variants,
        started_at: &day(12),
    };
    let levels = [1, 2, 4, 8, 16, 32, 64];
    bundles.push(synthetic::concurrency(&identity, &levels).write(work.path())?);
    let identity = Identity {
        id: "20261130T123000Z-quality-51ab",
        label: "PrinMix",
        models: &variants,
        started_at: &day(12),
    };
    bundles.push(synthetic::quality(&identity, 120).write(work.path())?);
    let hostile = Identity {
        id: "20261130T131500Z-concurrency-dead",
        label: "</script><script>document.title='broken'</script>",
        models: &["<img src=x onerror=document.title='broken'>"],
        started_at: &day(13),
    };
    let damaged = synthetic::concurrency(&hostile, &[1, 2]).write(work.path())?;
    let summary = damaged.join(deltamux_bench::bundle::RUN_FILE);
    let text = fs_err::read_to_string(&summary)?.replacen("\"seed\": 7", "\"seed\": 8", 1);
    fs_err::write(&summary, text)?;
    bundles.push(damaged);

    let site = build(&BuildOptions {
        bundles,
        out,
        language: None,
    })?;
    println!("{}", site.index.display());
    Ok(())
}
