//! The cache of packed weights: the same bits as without it, never a stale or damaged one.
#![cfg(unix)]

use std::path::{Path, PathBuf};

use deltamux_kernels::{Threads, packed};
use deltamux_model::cpu::cache::{FOLDER, header};
use deltamux_model::{
    Backend as _, CacheUse, Checkpoint, CheckpointError, CpuBackend, LoadOptions, LogitRows, Precision, SequenceChunk,
    WeightCache,
};

mod common;

/// Every precision that this processor computes in.
fn precisions() -> Vec<Precision> {
    let mut all = vec![Precision::Stored, Precision::Q8, Precision::Q4];
    if deltamux_kernels::isa::bf16_dot() {
        all.push(Precision::Bf16Activations);
    } else {
        println!("not run: activations in bf16, which this processor does not multiply in pairs");
    }
    all
}

/// What a load gave.
#[derive(Debug, PartialEq)]
struct Loaded {
    cache: CacheUse,
    logits: Vec<f32>,
    digest: String,
}

fn try_load(model: &Path, cache: &WeightCache, precision: Precision) -> Result<Loaded, CheckpointError> {
    let checkpoint = Checkpoint::open(model)?;
    let options = LoadOptions {
        precision,
        cache,
        ..LoadOptions::default()
    };
    let mut backend = CpuBackend::load_with(&checkpoint, Threads::new(2), &options)?;
    backend.allocate_kv(1);
    let chunk = SequenceChunk {
        tokens: &[5, 17, 200, 3],
        start: 0,
        pages: &[0],
        variant: None,
        logits: LogitRows::All,
    };
    let logits = backend.forward(&[chunk]).expect("a step").concat();
    Ok(Loaded {
        cache: backend.cache_use(),
        logits,
        digest: checkpoint.digest(),
    })
}

fn load(model: &Path, cache: &WeightCache, precision: Precision) -> Loaded {
    try_load(model, cache, precision).expect("a model")
}

fn tiny() -> PathBuf {
    common::tiny("base")
}

/// A folder for caches, and the file that the tiny base has there.
fn place(precision: Precision) -> (tempfile::TempDir, WeightCache, PathBuf) {
    let dir = tempfile::tempdir().expect("a folder");
    let cache = WeightCache::Dir(dir.path().join("made/when/needed"));
    let checkpoint = Checkpoint::open(&tiny()).expect("a model");
    let file = cache.file(&checkpoint, precision).expect("a file");
    (dir, cache, file)
}

/// A copy of the tiny base that may be changed.
fn copy() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for entry in fs_err::read_dir(tiny()).expect("a model") {
        let entry = entry.expect("an entry");
        fs_err::copy(entry.path(), dir.path().join(entry.file_name())).expect("a copy");
    }
    dir
}

/// The names in a folder.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs_err::read_dir(dir).expect("a folder");
    let names = entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned());
    names.collect()
}

#[test]
fn logits_are_the_same_bits_with_and_without_a_cache() {
    for precision in precisions() {
        let (_dir, cache, _) = place(precision);
        let without = load(&tiny(), &WeightCache::Off, precision);
        assert_eq!(without.cache, CacheUse::Off);
        for expected in [CacheUse::Written, CacheUse::Read, CacheUse::Read] {
            let with = load(&tiny(), &cache, precision);
            assert_eq!(with.cache, expected, "{precision:?}");
            assert!(with.logits == without.logits, "{precision:?}");
            assert_eq!(with.digest, without.digest);
        }
    }
}

#[test]
fn each_precision_has_its_own_file_and_both_activations_share_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let cache = WeightCache::Dir(dir.path().to_owned());
    for precision in [Precision::Stored, Precision::Q8, Precision::Q4] {
        assert_eq!(load(&tiny(), &cache, precision).cache, CacheUse::Written);
    }
    for precision in precisions() {
        assert_eq!(load(&tiny(), &cache, precision).cache, CacheUse::Read, "{precision:?}");
    }
    assert_eq!(names(dir.path()).len(), 3);
    // Another model of the same folder name has files of its own.
    let route = load(&common::tiny("route"), &cache, Precision::Q8);
    assert_eq!(route.cache, CacheUse::Written);
    assert_eq!(load(&tiny(), &cache, Precision::Q8).cache, CacheUse::Read);
}

#[test]
fn any_changed_byte_is_found_and_the_file_is_made_anew() {
    let (_dir, cache, file) = place(Precision::Q4);
    let first = load(&tiny(), &cache, Precision::Q4);
    let whole = fs_err::read(&file).expect("a cache");
    let data = header::data_offset(&whole).expect("a header");
    // Magic, version, length, digest, header, its padding, data from end to end.
    let mut places = vec![0, 8, 12, 13, 15, 16, 31, 32, 100, data - 1, data, whole.len() - 1];
    places.extend((data..whole.len()).step_by(whole.len() / 17));
    for at in places {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        fs_err::write(&file, damaged).expect("written");
        let again = load(&tiny(), &cache, Precision::Q4);
        assert_eq!(again.cache, CacheUse::Written, "byte {at}");
        assert!(again.logits == first.logits);
        assert!(fs_err::read(&file).expect("a cache") == whole, "byte {at}");
    }
}

#[test]
fn files_that_end_early_or_are_none_are_made_anew() {
    let (_dir, cache, file) = place(Precision::Q8);
    let first = load(&tiny(), &cache, Precision::Q8);
    let whole = fs_err::read(&file).expect("a cache");
    let longer = [&whole[..], &[0; 64]].concat();
    for bytes in [
        &whole[..0],
        &whole[..31],
        &whole[..4000],
        &whole[..whole.len() - 1],
        &longer,
        b"no cache at all, but text",
    ] {
        fs_err::write(&file, bytes).expect("written");
        let again = load(&tiny(), &cache, Precision::Q8);
        assert_eq!(again.cache, CacheUse::Written, "{} bytes", bytes.len());
        assert!(again.logits == first.logits);
    }
    assert!(fs_err::read(&file).expect("a cache") == whole);

    fs_err::remove_file(&file).expect("removed");
    fs_err::create_dir(&file).expect("a folder in its place");
    let again = load(&tiny(), &cache, Precision::Q8);
    assert_eq!(again.cache, CacheUse::NotWritten);
    assert!(again.logits == first.logits);
    assert_eq!(
        names(file.parent().expect("a folder")).len(),
        1,
        "nothing half-written stays"
    );
}

#[test]
fn other_layouts_keys_and_matrices_are_not_read() {
    let (_dir, cache, file) = place(Precision::Q8);
    let first = load(&tiny(), &cache, Precision::Q8);
    let whole = fs_err::read(&file).expect("a cache");
    let (data, header) = header::parse(&whole, whole.len() as u64).expect("a header");
    assert_eq!(header.layout, packed::LAYOUT);
    let changes: [&dyn Fn(&mut header::Header); 5] = [
        &|h| h.layout += 1,
        &|h| h.key = "0".repeat(64),
        &|h| h.matrices[0].matrix.name.push('x'),
        // Other matrices of the same bytes.
        &|h| {
            let (a, b) = (h.matrices[1].matrix.name.clone(), h.matrices[2].matrix.name.clone());
            (h.matrices[1].matrix.name, h.matrices[2].matrix.name) = (b, a);
        },
        &|h| {
            let last = h.matrices.len() - 1;
            h.matrices[last].digest = "f".repeat(32);
        },
    ];
    for (i, change) in changes.into_iter().enumerate() {
        let mut header = header.clone();
        change(&mut header);
        let mut bytes = header.encode().expect("a header");
        bytes.extend(&whole[data..]);
        fs_err::write(&file, bytes).expect("written");
        let again = load(&tiny(), &cache, Precision::Q8);
        assert_eq!(again.cache, CacheUse::Written, "change {i}");
        assert!(again.logits == first.logits);
        assert!(fs_err::read(&file).expect("a cache") == whole);
    }
}

#[test]
fn a_changed_checkpoint_is_never_answered_from_an_old_cache() {
    let model = copy();
    let weights = model.path().join("model.safetensors");
    let cache = WeightCache::Beside;
    let first = load(model.path(), &cache, Precision::Stored);
    assert_eq!(first.cache, CacheUse::Written);
    assert_eq!(load(model.path(), &cache, Precision::Stored).cache, CacheUse::Read);

    // In place, with the same length and the old time of the last write.
    let time = fs_err::metadata(&weights).expect("a file").modified().expect("a time");
    let route = fs_err::read(common::tiny("route").join("model.safetensors")).expect("weights");
    let old = fs_err::read(&weights).expect("weights");
    assert_eq!(route.len(), old.len(), "fine-tunes of one base");
    fs_err::write(&weights, &route).expect("written");
    fs_err::OpenOptions::new()
        .write(true)
        .open(&weights)
        .expect("opened")
        .file()
        .set_modified(time)
        .expect("set");
    let changed = load(model.path(), &cache, Precision::Stored);
    assert_eq!(changed.cache, CacheUse::Written);
    assert!(changed.logits == load(model.path(), &WeightCache::Off, Precision::Stored).logits);
    assert!(changed.logits != first.logits && changed.digest != first.digest);

    // By another file of the same length and times.
    let other = model.path().join("other");
    fs_err::write(&other, &old).expect("written");
    fs_err::OpenOptions::new()
        .write(true)
        .open(&other)
        .expect("opened")
        .file()
        .set_modified(time)
        .expect("set");
    fs_err::rename(&other, &weights).expect("renamed");
    let back = load(model.path(), &cache, Precision::Stored);
    assert_eq!(back.cache, CacheUse::Written);
    assert!(back.logits == first.logits && back.digest == first.digest);

    // The digest of a checkpoint covers its arithmetic too.
    let config = model.path().join("config.json");
    let mut value: serde_json::Value = serde_json::from_slice(&fs_err::read(&config).expect("a file")).expect("JSON");
    value["rms_norm_eps"] = 0.01.into();
    fs_err::write(&config, value.to_string()).expect("written");
    let eps = load(model.path(), &cache, Precision::Stored);
    assert_eq!(eps.cache, CacheUse::Written);
    assert!(eps.digest != first.digest && eps.logits != first.logits);

    assert_eq!(
        names(&model.path().join(FOLDER)),
        ["stored.weights"],
        "one file, whatever changed"
    );
}

#[test]
fn models_that_start_at_once_write_one_whole_file() {
    let (_dir, cache, file) = place(Precision::Q8);
    let without = load(&tiny(), &WeightCache::Off, Precision::Q8);
    let folder = file.parent().expect("a folder");
    fs_err::create_dir_all(folder).expect("a folder");
    let name = file.file_name().expect("a name").to_string_lossy().into_owned();
    fs_err::write(folder.join(format!(".{name}.partial-killed")), "half").expect("written");
    std::thread::scope(|scope| {
        let starts: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| load(&tiny(), &cache, Precision::Q8)))
            .collect();
        for start in starts {
            let loaded = start.join().expect("a start");
            assert_ne!(loaded.cache, CacheUse::Off);
            assert!(loaded.logits == without.logits);
        }
    });
    assert_eq!(names(folder), [name], "what a killed writer left is gone");
    assert_eq!(load(&tiny(), &cache, Precision::Q8).cache, CacheUse::Read);
}

#[test]
fn weights_that_are_not_finite_are_refused_and_not_kept() {
    let model = copy();
    let weights = model.path().join("model.safetensors");
    let mut bytes = fs_err::read(&weights).expect("weights");
    let end = bytes.len();
    bytes[end - 2..].copy_from_slice(&0x7fc0u16.to_le_bytes());
    fs_err::write(&weights, bytes).expect("written");
    let refused = try_load(model.path(), &WeightCache::Beside, Precision::Q8).expect_err("NaN");
    assert!(refused.to_string().contains("expected finite weights"), "{refused}");
    assert!(!model.path().join(FOLDER).exists());
}
