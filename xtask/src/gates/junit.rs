//! The JUnit reports that nextest and pytest write.
//!
//! Only what both write is read: `testcase` elements with `classname` and `name`, a `failure` or `error` inside one,
//! and what the test printed, in `system-out`.

use super::{NOT_RUN, NotRun, Tally};

/// Reads a report.
pub fn read(xml: &str) -> anyhow::Result<Tally> {
    anyhow::ensure!(
        xml.contains("<testsuite"),
        "the report of the test runner is no JUnit file"
    );
    let mut tally = Tally::default();
    for case in xml.split("<testcase ").skip(1) {
        let (attributes, closed) = head(case);
        let name = match (attribute(attributes, "classname"), attribute(attributes, "name")) {
            (Some(class), Some(name)) => format!("{class} {name}"),
            (None, Some(name)) => name,
            _ => anyhow::bail!("a test without a name in the report of the test runner"),
        };
        let body = if closed {
            ""
        } else {
            case.split("</testcase>").next().unwrap_or_default()
        };
        if body.contains("<failure") || body.contains("<error") {
            tally.failed.push(name);
        } else if let Some(why) = reason(body) {
            tally.not_run.push(NotRun { test: name, why });
        } else {
            tally.passed += 1;
        }
    }
    Ok(tally)
}

/// The attributes of a tag, and whether the tag closes itself.
fn head(case: &str) -> (&str, bool) {
    let mut quoted = false;
    for (at, c) in case.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '>' if !quoted => return (&case[..at], case[..at].ends_with('/')),
            _ => {}
        }
    }
    (case, true)
}

fn attribute(attributes: &str, name: &str) -> Option<String> {
    let start = format!("{name}=\"");
    let at = attributes.match_indices(&start).map(|(at, _)| at).find(|&at| {
        // `name="` also ends `classname="`.
        at == 0 || attributes[..at].ends_with(char::is_whitespace)
    })?;
    let value = attributes[at + start.len()..].split('"').next()?;
    Some(unescape(value))
}

/// Why the test did not run: it said so in a line of its own, or pytest marked it as skipped.
fn reason(body: &str) -> Option<String> {
    if let Some(at) = body.find("<skipped") {
        return attribute(head(&body[at..]).0, "message").or_else(|| Some("skipped".to_owned()));
    }
    let printed = body.split_once("<system-out>")?.1.split("</system-out>").next()?;
    printed
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(NOT_RUN))
        .map(unescape)
}

fn unescape(text: &str) -> String {
    let text = text
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&apos;", "'");
    text.replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_nextest_is_counted() {
        let xml = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="4" failures="1">
    <testsuite name="crate" tests="4" failures="1">
        <testcase name="a::passes" classname="crate" time="0.004"/>
        <testcase name="a::prints" classname="crate" time="0.004">
            <system-out>running 1 test
not running anything
</system-out>
            <system-err></system-err>
        </testcase>
        <testcase name="a::needs_more" classname="crate" time="0.004">
            <system-out>running 1 test
not run: DELTAMUX_TESTBED is not set
test a::needs_more ... ok
</system-out>
        </testcase>
        <testcase name="a::fails &lt;x&gt;" classname="crate" time="0.004">
            <failure message="a &gt; b" type="test failure">panicked</failure>
            <system-out>not run: it did</system-out>
        </testcase>
    </testsuite>
</testsuites>"#;
        let tally = read(xml).unwrap();
        assert_eq!(tally.passed, 2);
        assert_eq!(tally.failed, ["crate a::fails <x>"]);
        let expected = NotRun {
            test: "crate a::needs_more".to_owned(),
            why: "DELTAMUX_TESTBED is not set".to_owned(),
        };
        assert_eq!(tally.not_run, [expected]);
    }

    #[test]
    fn the_report_of_pytest_is_counted() {
        let xml = r#"<testsuites><testsuite name="pytest" errors="1" failures="0" skipped="1" tests="3">
<testcase classname="test_openai" name="test_models" time="0.1" />
<testcase classname="test_openai" name="test_chat" time="0.1"><error message="failed on setup &quot;x&quot; > y">e</error></testcase>
<testcase classname="test_openai" name="test_later" time="0.1"><skipped type="pytest.skip" message="no model">x</skipped></testcase>
</testsuite></testsuites>"#;
        let tally = read(xml).unwrap();
        assert_eq!((tally.passed, tally.failed.len()), (1, 1));
        assert_eq!(tally.not_run[0].why, "no model");
    }

    #[test]
    fn a_line_that_opens_the_output_counts() {
        let xml = "<testsuites><testsuite><testcase name=\"t\"><system-out>not run: no model</system-out></testcase>\
                   </testsuite></testsuites>";
        assert_eq!(read(xml).unwrap().not_run[0].why, "no model");
    }

    #[test]
    fn something_else_is_refused() {
        assert!(read("").is_err());
        assert!(read("<testsuite><testcase time=\"1\"/></testsuite>").is_err());
    }
}
