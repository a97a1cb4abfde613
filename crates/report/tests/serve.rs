//! `serve` hands out a site and nothing besides.

use std::net::{Ipv4Addr, SocketAddr};

use deltamux_report::{ReportError, serve};

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

#[tokio::test]
async fn a_site_is_handed_out_and_its_neighbours_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let site = dir.path().join("site");
    fs_err::create_dir_all(site.join("runs")).unwrap();
    fs_err::write(site.join("index.html"), "<h1>runs</h1>").unwrap();
    fs_err::write(site.join("runs/a.html"), "a").unwrap();
    fs_err::write(dir.path().join("secret.txt"), "secret").unwrap();
    let server = serve(&site, ANY_PORT).await.unwrap();
    let address = server.address();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(server.run(async {
        let _ = stopped.await;
    }));

    let start = reqwest::get(format!("http://{address}/")).await.unwrap();
    assert_eq!(start.status(), 200);
    assert!(
        start.headers()["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/html")
    );
    assert_eq!(start.headers()["cache-control"], "no-cache");
    assert_eq!(start.text().await.unwrap(), "<h1>runs</h1>");
    let run = reqwest::get(format!("http://{address}/runs/a.html")).await.unwrap();
    assert_eq!(run.text().await.unwrap(), "a");
    for outside in [
        "/absent.html",
        "/..%2fsecret.txt",
        "/%2e%2e/secret.txt",
        "/runs/..%2f..%2fsecret.txt",
    ] {
        let answer = reqwest::get(format!("http://{address}{outside}")).await.unwrap();
        assert_ne!(answer.status(), 200, "{outside}");
        assert!(!answer.text().await.unwrap().contains("secret"), "{outside}");
    }
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_folder_without_a_start_page_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = serve(dir.path(), ANY_PORT).await.err().unwrap();
    assert!(matches!(error, ReportError::NoIndex { .. }), "{error}");
}
