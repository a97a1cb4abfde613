//! Where the differences of a step are added to its results.

use std::ops::Range;

/// The rows of a step and the columns of its results that one difference is added to.
pub(crate) struct Place {
    pub(crate) rows: Range<usize>,
    pub(crate) column: usize,
    pub(crate) outputs: usize,
}

/// Refuses places that lie outside of the results, `[rows, stride]`, or share an element.
///
/// # Panics
/// If there is one.
pub(crate) fn check(mut places: Vec<Place>, rows: usize, stride: usize) {
    for place in &places {
        assert!(
            place.rows.start <= place.rows.end && place.rows.end <= rows,
            "a term's rows lie in x"
        );
        let end = place.column.checked_add(place.outputs);
        assert!(end.is_some_and(|end| end <= stride), "a term's columns lie in y");
    }
    places.retain(|place| !place.rows.is_empty());
    places.sort_unstable_by_key(|place| place.rows.start);
    for (i, a) in places.iter().enumerate() {
        for b in places[i + 1..].iter().take_while(|b| b.rows.start < a.rows.end) {
            let apart = a.column + a.outputs <= b.column || b.column + b.outputs <= a.column;
            assert!(apart, "no two terms share an element of y");
        }
    }
}
