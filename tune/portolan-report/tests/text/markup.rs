//! Checks on markup: its form, and the position of a place in it.

/// Elements without an end.
const VOID: [&str; 1] = ["meta"];

/// Tells if the place `at` is inside a tag and not in quotes.
pub fn within_tag(text: &str, at: usize) -> bool {
    let before = &text[..at];
    let tag = before.rfind('<').filter(|tag| Some(*tag) > before.rfind('>'));
    tag.is_some_and(|tag| before[tag..].matches('"').count().is_multiple_of(2))
}

/// Fault in the nesting of tags from `<html` on, without scripts and styles.
pub fn malformed(html: &str) -> Option<String> {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = &html[html.find("<html")?..];
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        let end = rest.find('>')?;
        let (tag, behind) = (&rest[..end], &rest[end + 1..]);
        if tag.matches('"').count() % 2 != 0 || tag.contains('<') {
            return Some(format!("quotes of <{tag}>"));
        }
        rest = behind;
        let name = tag.split([' ', '\n', '/']).find(|name| !name.is_empty())?;
        if tag.starts_with('/') {
            let opened = open.pop();
            if opened != Some(name) {
                return Some(format!("</{name}> ends {opened:?}"));
            }
        } else if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
        if name == "script" || name == "style" {
            rest = &rest[rest.find(&format!("</{name}"))?..];
        }
    }
    (!open.is_empty()).then(|| format!("open: {open:?}"))
}

/// Fault of a drawing: a part out of its plot, or a coordinate that is no number.
pub fn misdrawn(html: &str) -> Option<String> {
    for svg in html.split("<svg class=\"").skip(1) {
        let Some((_, after)) = svg.split_once("viewBox=\"0 0 ") else {
            continue;
        };
        let (size, content) = after.split_once('"')?;
        let content = content.split("</svg>").next()?;
        let size: Vec<i32> = size.split(' ').filter_map(|n| n.parse().ok()).collect();
        for attribute in [" x=\"", " y=\"", " points=\"", " width=\"", " height=\""] {
            for value in content.split(attribute).skip(1) {
                let value = value.split('"').next()?;
                for (nth, number) in value.split([' ', ',']).enumerate() {
                    let across = match attribute {
                        " points=\"" => nth % 2 == 0,
                        _ => attribute == " x=\"" || attribute == " width=\"",
                    };
                    let most = size[usize::from(!across)];
                    match number.parse::<i32>() {
                        Ok(number) if (0..=most).contains(&number) => {}
                        _ => return Some(format!("{attribute}{value} in {size:?}")),
                    }
                }
            }
        }
    }
    None
}

#[test]
fn broken_markup_is_found() {
    assert_eq!(malformed("<html><p>a</p></html>"), None);
    for broken in
        ["<html><p>a</html>", "<html><p class=\"a>b</p></html>", "<html><b><i></b></i></html>"]
    {
        assert!(malformed(broken).is_some(), "{broken}");
    }
    let svg = |inside: &str| format!("<svg class=\"wide\" viewBox=\"0 0 100 50\">{inside}</svg>");
    assert_eq!(misdrawn(&svg("<polyline points=\"0,0 100,50\"/>")), None);
    for broken in
        ["<polyline points=\"0,0 100,51\"/>", "<use x=\"NaN\" y=\"0\"/>", "<rect width=\"-1\"/>"]
    {
        assert!(misdrawn(&svg(broken)).is_some(), "{broken}");
    }
}
