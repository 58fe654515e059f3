use super::*;
use proptest::prelude::*;

fn utc(text: &str) -> Option<String> {
    parse(text).map(|t| t.to_string())
}

#[test]
fn dates_as_the_texts_have_them() {
    for (text, expected) in [
        ("2003-12-13T18:30:02Z", "2003-12-13T18:30:02Z"),
        ("2003-12-13T18:30:02.25+01:00", "2003-12-13T17:30:02.25Z"),
        ("2003-12-13t18:30:02z", "2003-12-13T18:30:02Z"),
        ("Sat, 07 Sep 2002 00:00:01 GMT", "2002-09-07T00:00:01Z"),
        ("Fri, 21 Nov 1997 09:55:06 -0600", "1997-11-21T15:55:06Z"),
        ("Sunday, 06-Nov-94 08:49:37 GMT", "1994-11-06T08:49:37Z"),
        ("Sun Nov  6 08:49:37 1994", "1994-11-06T08:49:37Z"),
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z"),
    ] {
        assert_eq!(utc(text).as_deref(), Some(expected), "{text}");
    }
}

#[test]
fn dates_as_feeds_have_them() {
    for (text, expected) in [
        ("2025-01-24", "2025-01-24T00:00:00Z"),
        ("2025-01", "2025-01-01T00:00:00Z"),
        ("2025", "2025-01-01T00:00:00Z"),
        ("2025-01-24T10:20", "2025-01-24T10:20:00Z"),
        ("2025-01-24 10:20:30", "2025-01-24T10:20:30Z"),
        ("2025-01-24 10:20:30 +0200", "2025-01-24T08:20:30Z"),
        ("2025-1-4", "2025-01-04T00:00:00Z"),
        ("Thu, 2 Jan 03 10:20 EST", "2003-01-02T15:20:00Z"),
        ("Thu, 2 Jan 2003 10:20:30 PDT", "2003-01-02T17:20:30Z"),
        ("2 January 99 1:02:03", "1999-01-02T01:02:03Z"),
        ("Thurs, 02 Jan 2003 10:20:30 GMT+0100", "2003-01-02T09:20:30Z"),
        ("  Thu,02 Jan 2003 10:20:30 UT\n", "2003-01-02T10:20:30Z"),
        ("Jan 2, 2003 10:20:30 +00:00 (UTC)", "2003-01-02T10:20:30Z"),
        ("2 Jan 2003", "2003-01-02T00:00:00Z"),
        ("20250124", "2025-01-24T00:00:00Z"),
    ] {
        assert_eq!(utc(text).as_deref(), Some(expected), "{text}");
    }
}

#[test]
fn times_of_a_12_hour_clock() {
    for (text, expected) in [
        ("Sat, 07 Sep 2002 07:00:01 pm", "2002-09-07T19:00:01Z"),
        ("Sat, 07 Sep 2002 7:00PM EST", "2002-09-08T00:00:00Z"),
        ("Sat, 07 Sep 2002 07:00:01 p.m. -0500", "2002-09-08T00:00:01Z"),
        ("Sat, 07 Sep 2002 07:00:01 AM", "2002-09-07T07:00:01Z"),
        ("Sep 7, 2002 12:30 am", "2002-09-07T00:30:00Z"),
        ("Sep 7, 2002 12:30 pm", "2002-09-07T12:30:00Z"),
        ("Sep 7, 2002 19:30 PM", "2002-09-07T19:30:00Z"),
        ("2002-09-07T00:00:01 PM", "2002-09-07T12:00:01Z"),
        ("2002-09-07 07:00:01pm +0200", "2002-09-07T17:00:01Z"),
    ] {
        assert_eq!(utc(text).as_deref(), Some(expected), "{text}");
    }
    assert_eq!(utc("Sat, 07 Sep 2002 19:00:01 am"), None);
}

#[test]
fn seconds_since_1970() {
    let seconds = |text| parse_or_seconds(text).map(|time| time.to_string());
    for (text, expected) in [
        ("1389003527", Some("2014-01-06T10:18:47Z")),
        ("1389003527.25", Some("2014-01-06T10:18:47.25Z")),
        ("100000000", Some("1973-03-03T09:46:40Z")),
        ("2025", Some("2025-01-01T00:00:00Z")),
        ("20250124", Some("2025-01-24T00:00:00Z")),
        ("20251324", None),
        ("202501", None),
        ("2025024", None),
        ("0", None),
        ("1389003527.", None),
    ] {
        assert_eq!(seconds(text).as_deref(), expected, "{text}");
    }
    let number = |text| of_number(text).map(|time| time.to_string());
    for (text, expected) in [
        ("20250124", Some("1970-08-23T09:02:04Z")),
        ("-1.5", Some("1969-12-31T23:59:58.5Z")),
        ("0", Some("1970-01-01T00:00:00Z")),
        ("2025", Some("2025-01-01T00:00:00Z")),
        ("1e400", None),
    ] {
        assert_eq!(number(text).as_deref(), expected, "{text}");
    }
}

#[test]
fn dates_that_are_none() {
    for text in [
        "",
        "yesterday",
        "2025-13-01",
        "2025-02-30",
        "2025-01-01T25:00Z",
        "Mon",
        "31 Feb 2024",
        "--",
        "2025-01-01-01",
        "12:00",
        "Thu, 2 Foo 2003 10:20 GMT",
        "99999999999999999999",
        "2025-01-01T10:61:00Z",
        "é",
    ] {
        assert_eq!(parse(text), None, "{text}");
    }
}

proptest! {
    #[test]
    fn any_instant_comes_back(seconds in -62_167_219_200_i64..253_402_300_799, nanoseconds in 0..1_000_000_000_i32) {
        let instant = Timestamp::new(seconds, 0).unwrap();
        let precise = instant + jiff::SignedDuration::from_nanos(i64::from(nanoseconds));
        prop_assert_eq!(parse(&precise.to_string()), Some(precise));
        let date = jiff::fmt::rfc2822::to_string(&instant.to_zoned(jiff::tz::TimeZone::UTC)).unwrap();
        prop_assert_eq!(parse(&date), Some(instant), "{}", date);
    }

    #[test]
    fn nothing_panics(text in "[0-9a-zA-Z:+., -]{0,40}") {
        let _ = parse(&text);
        let _ = (parse_or_seconds(&text), of_number(&text));
    }
}
