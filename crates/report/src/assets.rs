//! Files that every site gets, built into the program. The vendored ones are as their projects publish them; their
//! licences travel with them.

/// A file below `assets/` of a site.
pub struct Asset {
    /// Its path there.
    pub path: &'static str,
    /// Its content.
    pub bytes: &'static [u8],
}

macro_rules! asset {
    ($path:literal, $source:literal) => {
        Asset {
            path: $path,
            bytes: include_bytes!(concat!("../assets/", $source)),
        }
    };
}

/// All of them.
pub const ASSETS: &[Asset] = &[
    asset!("site.css", "site.css"),
    asset!("theme.js", "theme.js"),
    asset!("site.js", "site.js"),
    asset!("charts.js", "charts.js"),
    asset!("echarts.min.js", "vendor/echarts/echarts.min.js"),
    asset!("licences/echarts.LICENSE.txt", "vendor/echarts/LICENSE"),
    asset!("licences/echarts.NOTICE.txt", "vendor/echarts/NOTICE"),
    asset!("licences/echarts.LICENSE-d3.txt", "vendor/echarts/LICENSE-d3"),
    asset!("licences/zrender.LICENSE.txt", "vendor/echarts/LICENSE-zrender"),
    asset!(
        "ibm-plex-sans-latin-wght-normal.woff2",
        "vendor/ibm-plex-sans/ibm-plex-sans-latin-wght-normal.woff2"
    ),
    asset!("licences/ibm-plex-sans.LICENSE.txt", "vendor/ibm-plex-sans/LICENSE"),
];
