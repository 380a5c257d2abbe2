//! Profiles: those that come with the program, and those that are wrong.

use portolan::inval::{Caching, RangeForm, WalkFlush, Walker};

use super::*;
use crate::iommu::{CommandPrices, Setup};

fn sm8150() -> &'static str {
    BUILTIN[0].1
}

#[test]
fn the_builtin_ones_are_whole() {
    let all = Profile::builtin().unwrap();
    assert_eq!(all.len(), BUILTIN.len());
    for (profile, name) in all.iter().zip(Profile::names()) {
        assert_eq!(profile.name(), name);
        assert_eq!(&Profile::by_name(name).unwrap(), profile);
        assert!(!profile.title().is_empty() && !profile.stands_for().is_empty());
        assert!(CommandPrices::of(profile).is_ok(), "{name}");
        assert!(Setup::realistic(profile).is_ok(), "{name}");
        let cpu = [
            Event::MapCall,
            Event::UnmapCall,
            Event::UnmapCallTables,
            Event::MapPage,
            Event::PteWrite,
            Event::UnmapPage,
            Event::TableFree,
        ];
        for event in cpu {
            assert!(profile.price(event).is_ok(), "{name} {event}");
        }
        let known = ["fitted:", "literature:", "assumed:", "derived:", "published:", "measured:"];
        for (event, price) in profile.prices().iter() {
            let begins = known.iter().any(|word| price.source.starts_with(word));
            assert!(begins, "{name} {event}: {}", price.source);
        }
    }
}

#[test]
fn says_what_the_hardware_can_do() {
    let qcom = Profile::by_name("sm8150").unwrap();
    assert_eq!(qcom.quirks().walk_flush, WalkFlush::ByContext);
    assert_eq!(qcom.capabilities().range, RangeForm::Absent);
    assert_eq!(qcom.granule(), PageSize::SIZE_4K);
    assert_eq!(qcom.context(), ContextKind::Asid);
    let tegra = Profile::by_name("tegra210").unwrap();
    assert_eq!(tegra.capabilities().caching, Caching::NotPresentToo);
    assert_eq!(tegra.capabilities().walker, Walker::NonCoherent);
    assert_eq!(tegra.format(), TableFormat::tegra(34).unwrap());
    let xeon = Profile::by_name("xeon-vtd").unwrap();
    assert_eq!(xeon.capabilities().range, RangeForm::PowerOfTwo { max_lg2_pages: 18 });
    let strict = xeon.price(Event::CmdRange).unwrap() + xeon.price(Event::Sync).unwrap();
    assert!((strict - 2130.0 / 3.1).abs() < 0.01);
    let grace = Profile::by_name("grace").unwrap();
    let strict = grace.price(Event::CmdRange).unwrap() + grace.price(Event::Sync).unwrap();
    assert!((strict - 1e9 / 2.8e6).abs() < 0.01);
    assert_eq!(grace.cpus(), 144);
    for name in ["grace", "vtd-nested"] {
        let profile = Profile::by_name(name).unwrap();
        let quotes = profile.sharing().unwrap().quotes();
        let others = profile.submission().unwrap().quotes();
        for (key, price) in quotes.into_iter().chain(others) {
            let known = ["assumed:", "derived:", "literature:"];
            let begins = known.iter().any(|word| price.source.starts_with(word));
            assert!(begins, "{name} {key}: {}", price.source);
        }
    }
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    let error = Profile::by_name("sm8151").unwrap_err();
    assert!(matches!(&error, LookupError::Unknown(unknown) if unknown.name == "sm8151"));
    let text = error.to_string();
    assert!(Profile::names().all(|name| text.contains(name)), "{text}");
}

#[test]
fn unknown_keys_are_errors() {
    for (from, to) in [
        ("cpus = 8", "cpus = 8\ncores = 8"),
        ("granule = \"4K\"\ninput", "granule = \"4K\"\nstages = 1\ninput"),
        ("[quirks]", "[quirks]\nwalk_flushes = 1"),
        ("depth = 1", "depth = 1\nwidth = 1"),
        ("[prices.sync]", "[prices.synch]"),
        ("[prices.sync]", "[prices.sync]\nus = 1"),
        ("{ form = \"absent\" }", "{ form = \"absent\", max = 3 }"),
    ] {
        let text = sm8150().replacen(from, to, 1);
        assert_ne!(text, sm8150(), "{from}");
        assert!(matches!(Profile::from_toml(&text), Err(ProfileError::Toml(_))), "{to}");
    }
}

/// Replacements in sm8150's profile: the old text, the new one, and the key that the error names.
const SENSELESS: &[(&str, &str, &str)] = &[
    ("cpus = 8", "cpus = 0", "cpus"),
    ("cpus = 8", "cpus = 4000000000", "cpus"),
    ("depth = 1", "depth = 4000000000", "queue.depth"),
    ("entries = 512, ways = 4", "entries = 4000000000, ways = 4", "caches.iotlb"),
    ("caching = \"present-only\"", "caching = \"not-present-too\"", "capabilities.caching"),
    ("context = \"asid\"", "context = \"vmid\"", "context"),
    (
        "[capabilities]\ngranule = \"4K\"",
        "[capabilities]\ngranule = \"16K\"",
        "capabilities.granule",
    ),
    (
        "[quirks]",
        "[surroundings]\nshadowing = \"caching-mode\"\nexits = \"expensive\"\n[quirks]",
        "surroundings.shadowing",
    ),
    ("depth = 1", "depth = 0", "queue.depth"),
    ("ns = 500.0", "ns = -1.0", "sync"),
    ("ns = 500.0", "ns = nan", "sync"),
    ("ns = 500.0", "ns = 2e9", "sync"),
    ("ns = 500.0", "ns = 500.0\nlow_ns = 600.0", "sync"),
    ("ns = 500.0", "ns = 500.0\nhigh_ns = 400.0", "sync"),
    ("ns = 500.0", "ns = 500.0\nhigh_ns = inf", "sync"),
    ("deadline_ns = 1_000_000_000", "deadline_ns = 400", "sync"),
    ("[prices.cmd_page]", "[prices.cmd_range]", "cmd_page"),
    ("form = \"absent\"", "form = \"power-of-two\", max_lg2_pages = 9", "cmd_range"),
    ("page = \"granule\"", "page = \"absent\"", "cmd_page"),
    ("input_lg2 = 39", "input_lg2 = 60", "format"),
    ("entries = 512, ways = 4", "entries = 512, ways = 0", "caches.iotlb"),
    ("entries = 64, ways = 4", "entries = 65, ways = 4", "caches.walk"),
];

#[test]
fn values_without_sense_are_errors() {
    for &(from, to, key) in SENSELESS {
        let text = sm8150().replacen(from, to, 1);
        match Profile::from_toml(&text) {
            Err(ProfileError::Value { key: found, .. }) => assert_eq!(found, key),
            other => panic!("{to}: {other:?}"),
        }
    }
    for wrong in ["\"4Q\"", "\"3K\"", "\"\"", "\"K\"", "4096", "\"4294967295G\""] {
        let text = sm8150().replacen("granule = \"4K\"", &format!("granule = {wrong}"), 1);
        assert!(Profile::from_toml(&text).is_err(), "{wrong}");
    }
    assert!(Profile::from_toml("").is_err());
    assert!(Profile::from_toml("\u{0}\u{1}").is_err());
}

/// The text of a builtin profile.
fn text_of(name: &str) -> &'static str {
    BUILTIN.iter().find(|(known, _)| *known == name).unwrap().1
}

const PRESENT_ONLY: &str = "caching = \"present-only\"";

/// Replacements in the profile of a machine: its name, the old text, the new one, and the key that the error names.
const CONTRADICTIONS: &[(&str, &str, &str, &str)] = &[
    // Caching mode with no hypervisor, said in each of the places that can.
    ("xeon-vtd", PRESENT_ONLY, "caching = \"not-present-too\"", "surroundings.shadowing"),
    (
        "xeon-vtd",
        "[quirks]",
        "[quirks]\n[surroundings]\nshadowing = \"caching-mode\"",
        "surroundings.shadowing",
    ),
    ("spr-vm", "exits = \"expensive\"", "exits = \"none\"", "surroundings.exits"),
    // Exits without a price, and a price of an event that does not happen.
    ("vtd-nested", "exits = \"expensive\"", "exits = \"none\"", "exit"),
    ("xeon-vtd", "[quirks]", "[quirks]\n[surroundings]\nexits = \"expensive\"", "exit"),
    ("xeon-vtd", "max_lg2_pages = 18", "max_lg2_pages = 64", "capabilities.range"),
    ("grace", "max_num = 32", "max_num = 33", "capabilities.range"),
    (
        "tegra210",
        "caching = \"not-present-too\"",
        "caching = \"present-only\"",
        "capabilities.caching",
    ),
    ("spr-vm", "receiving = [10, 16, 100]", "receiving = [10, 9, 100]", "surroundings.receiving"),
    ("spr-vm", "receiving = [10, 16, 100]", "receiving = [0, 16, 100]", "surroundings.receiving"),
    (
        "xeon-vtd",
        "[quirks]",
        "[quirks]\n[surroundings]\nreceiving = [1, 2, 3]",
        "surroundings.receiving",
    ),
    (
        "xeon-vtd",
        "[quirks]",
        "[quirks]\n[surroundings]\nshadowing = \"write-protection\"",
        "surroundings.exits",
    ),
    ("spr-vm", PRESENT_ONLY, "caching = \"not-present-too\"", "capabilities.caching"),
];

#[test]
fn facts_that_contradict_each_other_are_refused() {
    for &(machine, from, to, key) in CONTRADICTIONS {
        let text = text_of(machine).replacen(from, to, 1);
        assert_ne!(text, text_of(machine), "{from}");
        match Profile::from_toml(&text) {
            Err(ProfileError::Value { key: found, .. }) => assert_eq!(found, key, "{to}"),
            other => panic!("{machine}, {to}: {other:?}"),
        }
    }
}

#[test]
fn what_is_unlikely_is_warned_of_and_no_builtin_profile_is() {
    for profile in Profile::builtin().unwrap() {
        assert_eq!(profile.warnings(), [""; 0]);
    }
    // Time of a whole machine, charged to the waiting CPU.
    let guest = text_of("spr-vm");
    let cheap = |text: &str, key: &str| {
        let at = text.find(key).unwrap() + key.len() + 1;
        let end = at + text[at..].find("\n\n").unwrap();
        format!("{}ns = 35.0\nsource = \"assumed: here\"{}", &text[..at], &text[end..])
    };
    let keys = ["[prices.sync]", "[prices.cmd_range]", "[prices.exit]"];
    let text = keys.into_iter().fold(guest.to_owned(), |text, key| cheap(&text, key));
    let warned = Profile::from_toml(&text).unwrap().warnings();
    assert!(warned.len() == 1 && warned[0].contains("bare metal"), "{warned:?}");
    let free = |text: &str, key: &str| cheap(text, key).replacen("ns = 35.0", "ns = 0.0", 1);
    let text = free(&free(sm8150(), "[prices.sync]"), "[prices.cmd_page]");
    let warned = Profile::from_toml(&text).unwrap().warnings();
    assert!(warned.len() == 1 && warned[0].contains("cost nothing"), "{warned:?}");
    let text = sm8150().replacen("ns = 1.484", "ns = 900.0", 1);
    let warned = Profile::from_toml(&text).unwrap().warnings();
    assert!(warned.len() == 1 && warned[0].contains("in a run"), "{warned:?}");
}

#[test]
fn a_price_without_source_is_an_error() {
    let text = sm8150().replacen("source = \"assumed: one read of memory\"", "source = \" \"", 1);
    let error = Profile::from_toml(&text).unwrap_err();
    assert!(error.to_string().contains("iotlb_miss_step"), "{error}");
}

#[test]
fn a_missing_price_is_named() {
    let start = sm8150().find("[prices.sync]").unwrap();
    let end = start + sm8150()[start..].find("\n\n").unwrap();
    let text = format!("{}{}", &sm8150()[..start], &sm8150()[end..]);
    let profile = Profile::from_toml(&text).unwrap();
    let missing = profile.price(Event::Sync).unwrap_err();
    assert_eq!(missing, MissingPrice { machine: "sm8150".to_owned(), event: Event::Sync });
    assert!(missing.to_string().contains("`sync`"));
    assert_eq!(CommandPrices::of(&profile), Err(missing));
    // A command that the hardware does not have needs no price.
    assert!(profile.price(Event::CmdRange).is_err());
}

#[test]
fn events_have_the_names_of_the_files() {
    for event in Event::ALL {
        let text = format!("[{event}]\nns = 1.5\nsource = \"assumed: for this test\"");
        let prices: Prices = toml::from_str(&text).unwrap();
        assert_eq!(prices.get(event).map(|price| price.ns), Some(1.5));
    }
}

#[test]
fn a_profile_is_written_with_other_prices_and_all_else_as_it_was() {
    for (name, text) in BUILTIN {
        let before = Profile::from_toml(text).unwrap();
        let price = Price {
            ns: 12.5,
            low_ns: Some(12.0),
            high_ns: None,
            source: "measured: \"here\",\na test".to_owned(),
        };
        let rewrite = Rewrite {
            name: "mine",
            title: "a title",
            stands_for: "one machine",
            cpus: 3,
            prices: &[(Event::PteWrite, price.clone())],
        };
        let (text, after) = rewrite.apply(text).unwrap();
        assert_eq!(Profile::from_toml(&text).as_ref(), Ok(&after), "{name}");
        assert_eq!(after.quote(Event::PteWrite), Ok(&price));
        let mut expected = before.with_cpus(3);
        expected.name = "mine".to_owned();
        expected.title = "a title".to_owned();
        expected.stands_for = "one machine".to_owned();
        expected.prices.0.insert(Event::PteWrite, price);
        assert_eq!(after, expected, "{name}");
    }
}
