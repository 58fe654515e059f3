//! Parser of selectors.

use super::Combinator;
use super::compound::{Compound, Operator, Test};

/// Maximum length of a selector. Its compounds multiply the time of a match.
const MAX_LENGTH: usize = 1000;

/// Parses a list of selectors.
pub(super) fn selector(text: &str) -> Result<Vec<Vec<(Combinator, Compound)>>, String> {
    if text.len() > MAX_LENGTH {
        return Err(format!("a selector of more than {MAX_LENGTH} bytes"));
    }
    let mut parser = Parser { rest: text.trim() };
    let mut alternatives = Vec::new();
    loop {
        alternatives.push(parser.chain()?);
        if !parser.take(',') {
            break;
        }
    }
    match parser.rest.chars().next() {
        None => Ok(alternatives),
        Some(unexpected) => Err(format!("{unexpected:?} is not expected before {:?}", parser.rest)),
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn chain(&mut self) -> Result<Vec<(Combinator, Compound)>, String> {
        self.skip_space();
        let mut chain = vec![(Combinator::Descendant, self.compound()?)];
        loop {
            let spaced = self.skip_space();
            let combinator = match self.rest.chars().next() {
                Some('>') => Combinator::Child,
                Some('+') => Combinator::Next,
                Some('~') => Combinator::Later,
                None | Some(',') => return Ok(chain),
                Some(_) if spaced => Combinator::Descendant,
                Some(_) => return Ok(chain),
            };
            if combinator != Combinator::Descendant {
                self.rest = &self.rest[1..];
                self.skip_space();
            }
            chain.push((combinator, self.compound()?));
        }
    }

    fn compound(&mut self) -> Result<Compound, String> {
        let mut compound = Compound::default();
        let mut found = self.take('*');
        if !found && self.rest.starts_with(is_name_char) {
            // HTML's names are in lower case, however a page writes them.
            compound.name = Some(self.name()?.to_ascii_lowercase());
            found = true;
        }
        while let Some(test) = self.test()? {
            compound.tests.push(test);
            found = true;
        }
        if found {
            Ok(compound)
        } else {
            Err(format!("an element, class or attribute is expected before {:?}", self.rest))
        }
    }

    fn test(&mut self) -> Result<Option<Test>, String> {
        if self.take('#') {
            let value = self.name()?;
            return Ok(Some(equal("id", value)));
        }
        if self.take('.') {
            return Ok(Some(Test::Class(self.name()?)));
        }
        if self.take('[') {
            return self.attribute().map(Some);
        }
        if self.take(':') {
            return self.pseudo_class().map(Some);
        }
        Ok(None)
    }

    fn attribute(&mut self) -> Result<Test, String> {
        self.skip_space();
        let name = self.name()?.to_ascii_lowercase();
        self.skip_space();
        let operators = [
            ("=", Operator::Equal),
            ("~=", Operator::Word),
            ("|=", Operator::Hyphen),
            ("^=", Operator::Prefix),
            ("$=", Operator::Suffix),
            ("*=", Operator::Contains),
        ];
        let mut operator = Operator::Present;
        for (text, meaning) in operators {
            if let Some(rest) = self.rest.strip_prefix(text) {
                (self.rest, operator) = (rest, meaning);
                break;
            }
        }
        let (mut value, mut ignore_case) = (String::new(), false);
        if operator != Operator::Present {
            self.skip_space();
            value = self.value()?;
            self.skip_space();
            ignore_case = self.take('i') || self.take('I');
            self.skip_space();
        }
        if !self.take(']') {
            return Err(format!("[{name} is not closed by ]"));
        }
        Ok(Test::Attribute { name, operator, value, ignore_case })
    }

    fn value(&mut self) -> Result<String, String> {
        let Some(quote) = self.rest.chars().next().filter(|c| matches!(c, '"' | '\'')) else {
            return self.name();
        };
        let (value, rest) = self.rest[1..].split_once(quote).ok_or("a quotation mark is not closed")?;
        self.rest = rest;
        Ok(value.to_owned())
    }

    fn pseudo_class(&mut self) -> Result<Test, String> {
        let name = self.name()?.to_ascii_lowercase();
        let nth = |a, b, from_end| Test::Nth { a, b, from_end };
        Ok(match name.as_str() {
            "first-child" => nth(0, 1, false),
            "last-child" => nth(0, 1, true),
            "empty" => Test::Empty,
            "nth-child" | "nth-last-child" => {
                let inner = self.argument(&name)?;
                let (a, b) = an_plus_b(inner).ok_or_else(|| format!("{inner:?} is not of the form an+b"))?;
                nth(a, b, name == "nth-last-child")
            }
            "not" | "is" | "where" => {
                let inner = self.argument(&name)?;
                let mut parser = Parser { rest: inner.trim() };
                let mut compounds = Vec::new();
                loop {
                    parser.skip_space();
                    compounds.push(parser.compound()?);
                    parser.skip_space();
                    if !parser.take(',') {
                        break;
                    }
                }
                if !parser.rest.is_empty() {
                    return Err(format!(":{name}({inner}) has more than simple selectors"));
                }
                Test::Is { compounds, negated: name == "not" }
            }
            _ => return Err(format!(":{name} is not supported")),
        })
    }

    /// Returns the text between parentheses.
    fn argument(&mut self, name: &str) -> Result<&str, String> {
        let unclosed = || format!(":{name} needs an argument in parentheses");
        let inner = self.rest.strip_prefix('(').ok_or_else(unclosed)?;
        let (mut depth, mut end) = (1, None);
        for (at, c) in inner.char_indices() {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            // Simple selectors nest a few times at most; more would only cost stack.
            if depth > 4 {
                return Err(format!(":{name} is nested too deeply"));
            }
            if depth == 0 {
                end = Some(at);
                break;
            }
        }
        let end = end.ok_or_else(unclosed)?;
        self.rest = &inner[end + 1..];
        Ok(&inner[..end])
    }

    /// Reads an identifier. A backslash makes any character part of it.
    fn name(&mut self) -> Result<String, String> {
        let mut name = String::new();
        let mut chars = self.rest.char_indices();
        let mut end = self.rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => name.extend(chars.next().map(|(_, escaped)| escaped)),
                c if is_name_char(c) => name.push(c),
                _ => {
                    end = at;
                    break;
                }
            }
        }
        if name.is_empty() {
            return Err(format!("a name is expected before {:?}", self.rest));
        }
        self.rest = &self.rest[end..];
        Ok(name)
    }

    fn take(&mut self, wanted: char) -> bool {
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn skip_space(&mut self) -> bool {
        let before = self.rest.len();
        self.rest = self.rest.trim_start();
        self.rest.len() < before
    }
}

fn equal(name: &str, value: String) -> Test {
    Test::Attribute { name: name.to_owned(), operator: Operator::Equal, value, ignore_case: false }
}

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '-' | '_' | '\\') || !c.is_ascii()
}

/// Parses `an+b`, `odd`, `even` or a number.
fn an_plus_b(text: &str) -> Option<(i64, i64)> {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect::<String>().to_ascii_lowercase();
    match text.as_str() {
        "odd" => return Some((2, 1)),
        "even" => return Some((2, 0)),
        _ => {}
    }
    // Small numbers only, so that no sum overflows.
    let number = |text: &str| text.strip_prefix('+').unwrap_or(text).parse::<i32>().ok().map(i64::from);
    let Some((a, b)) = text.split_once('n') else { return Some((0, number(&text)?)) };
    let a = match a {
        "" | "+" => 1,
        "-" => -1,
        a => number(a)?,
    };
    Some((a, if b.is_empty() { 0 } else { number(b)? }))
}
