//! Outline of a Rust file by its syntax: definitions, imports, mentioned paths, types, functions.
//!
//! It is plain data, so that every check can have it: what the parser returns stays on its thread.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// A name that a module has from an item in it.
pub struct Definition {
    /// Inline modules around it.
    pub scope: Vec<String>,
    pub name: String,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Type,
    Other,
    /// An identifier in the call of a macro that makes items; it may be the name of one.
    Guess,
}

/// One path of a `use`.
pub struct Import {
    pub scope: Vec<String>,
    pub path: Vec<String>,
    /// Name that the module has for it; none: all names of `path`.
    pub name: Option<String>,
    pub is_reexport: bool,
    pub line: usize,
}

/// A path in code.
pub struct Mention {
    pub scope: Vec<String>,
    pub path: Vec<String>,
    pub line: usize,
}

pub struct Module {
    pub path: Vec<String>,
    pub in_test: bool,
    pub is_inline: bool,
}

/// An inherent `impl`.
pub struct Inherent {
    pub scope: Vec<String>,
    /// Path of the type.
    pub path: Vec<String>,
    pub line: usize,
    pub methods: usize,
    /// Whether a method takes `&mut self`.
    pub mutates: bool,
}

pub struct Struct {
    pub scope: Vec<String>,
    pub name: String,
    pub line: usize,
    pub fields: usize,
    /// Whether every field is as visible as `pub` or `pub(...)` says.
    pub fields_are_open: bool,
    pub derives: BTreeSet<String>,
}

/// A function with a body.
pub struct Function {
    /// Type or trait around it.
    pub owner: Option<String>,
    pub name: String,
    pub line: usize,
    pub lines: usize,
}

/// Of items that are left out where no test is compiled, only `functions` and `modules` are there.
#[derive(Default)]
pub struct Outline {
    pub definitions: Vec<Definition>,
    pub imports: Vec<Import>,
    pub mentions: Vec<Mention>,
    pub modules: Vec<Module>,
    pub inherents: Vec<Inherent>,
    pub structs: Vec<Struct>,
    pub functions: Vec<Function>,
    /// Whether the file says of itself that it is for tests only.
    pub is_test: bool,
    /// What the parser said instead.
    pub error: Option<String>,
}

pub fn of(path: &str, text: &str) -> Outline {
    let mut reader = Reader::default();
    match syn::parse_file(text) {
        Ok(file) => {
            reader.outline.is_test = file.attrs.iter().any(is_left_out);
            reader.visit_file(&file);
        }
        Err(error) => reader.outline.error = Some(format!("{path}: {error}")),
    }
    reader.outline
}

#[derive(Default)]
struct Reader {
    outline: Outline,
    scope: Vec<String>,
    owner: Option<String>,
    /// Functions around the code that is being visited.
    depth: usize,
    in_test: bool,
}

/// Whether an attribute leaves its item out of a build without tests, rustdoc and loom.
fn is_left_out(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    attribute.path().is_ident("cfg") && predicate(&list.tokens.to_string()) == Some(false)
}

/// The value of a `cfg` predicate in such a build; none where features or the target decide.
fn predicate(text: &str) -> Option<bool> {
    let text = text.trim();
    let Some((name, rest)) = text.split_once('(') else {
        return ["test", "doctest", "loom"].contains(&text).then_some(false);
    };
    let inner = rest.trim_end().strip_suffix(')')?;
    let values: Vec<_> = split_at_commas(inner).into_iter().map(predicate).collect();
    match name.trim() {
        "not" => values.first().copied().flatten().map(|value| !value),
        "all" if values.contains(&Some(false)) => Some(false),
        "any" if values.iter().all(|value| *value == Some(false)) => Some(false),
        _ => None,
    }
}

fn split_at_commas(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

fn line_of(ident: &syn::Ident) -> usize {
    ident.span().start().line
}

fn segments(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

fn type_path(ty: &syn::Type) -> Option<&syn::Path> {
    match ty {
        syn::Type::Path(path) => Some(&path.path),
        syn::Type::Reference(reference) => type_path(&reference.elem),
        _ => None,
    }
}

fn derives(attributes: &[syn::Attribute]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("derive")) {
        if let syn::Meta::List(list) = &attribute.meta {
            let text = list.tokens.to_string();
            names.extend(
                text.split(',')
                    .filter_map(|path| path.rsplit("::").next())
                    .map(|name| name.trim().to_owned()),
            );
        }
    }
    names
}

fn item_attributes(item: &syn::Item) -> &[syn::Attribute] {
    use syn::Item as I;
    match item {
        I::Const(item) => &item.attrs,
        I::Enum(item) => &item.attrs,
        I::ExternCrate(item) => &item.attrs,
        I::Fn(item) => &item.attrs,
        I::ForeignMod(item) => &item.attrs,
        I::Impl(item) => &item.attrs,
        I::Macro(item) => &item.attrs,
        I::Mod(item) => &item.attrs,
        I::Static(item) => &item.attrs,
        I::Struct(item) => &item.attrs,
        I::Trait(item) => &item.attrs,
        I::Type(item) => &item.attrs,
        I::Union(item) => &item.attrs,
        I::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn impl_item_attributes(item: &syn::ImplItem) -> &[syn::Attribute] {
    match item {
        syn::ImplItem::Const(item) => &item.attrs,
        syn::ImplItem::Fn(item) => &item.attrs,
        syn::ImplItem::Type(item) => &item.attrs,
        syn::ImplItem::Macro(item) => &item.attrs,
        _ => &[],
    }
}

fn statement_attributes(statement: &syn::Stmt) -> &[syn::Attribute] {
    match statement {
        syn::Stmt::Local(local) => &local.attrs,
        syn::Stmt::Macro(call) => &call.attrs,
        syn::Stmt::Expr(expression, _) => expression_attributes(expression),
        syn::Stmt::Item(_) => &[],
    }
}

/// The attributes of a statement that is an expression: the parser gives them to its leftmost part.
fn expression_attributes(expression: &syn::Expr) -> &[syn::Attribute] {
    use syn::Expr as E;
    match expression {
        E::Assign(expression) => expression_attributes(&expression.left),
        E::Binary(expression) => expression_attributes(&expression.left),
        E::Block(expression) => &expression.attrs,
        E::Call(expression) => &expression.attrs,
        E::Field(expression) => &expression.attrs,
        E::ForLoop(expression) => &expression.attrs,
        E::If(expression) => &expression.attrs,
        E::Loop(expression) => &expression.attrs,
        E::Macro(expression) => &expression.attrs,
        E::Match(expression) => &expression.attrs,
        E::MethodCall(expression) => &expression.attrs,
        E::Path(expression) => &expression.attrs,
        E::Return(expression) => &expression.attrs,
        E::Try(expression) => &expression.attrs,
        E::Unsafe(expression) => &expression.attrs,
        E::While(expression) => &expression.attrs,
        _ => &[],
    }
}

impl Reader {
    /// Runs `visit`, as for test code if `attributes` leave it out.
    fn within(&mut self, attributes: &[syn::Attribute], visit: impl FnOnce(&mut Self)) {
        let outer = self.in_test;
        self.in_test |= attributes.iter().any(is_left_out);
        visit(self);
        self.in_test = outer;
    }

    fn within_owner(&mut self, owner: Option<String>, visit: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.owner, owner);
        visit(self);
        self.owner = outer;
    }

    fn define(&mut self, ident: &syn::Ident, kind: Kind) {
        if !self.in_test && self.depth == 0 {
            let (scope, name) = (self.scope.clone(), ident.to_string());
            self.outline.definitions.push(Definition { scope, name, kind });
        }
    }

    fn mention(&mut self, path: Vec<String>, line: usize) {
        if !self.in_test && !path.is_empty() && path[0] != "Self" {
            self.outline.mentions.push(Mention { scope: self.scope.clone(), path, line });
        }
    }

    fn import(&mut self, path: Vec<String>, name: Option<String>, item: &syn::ItemUse) {
        if !self.in_test {
            let is_reexport = !matches!(item.vis, syn::Visibility::Inherited);
            let line = item.use_token.span.start().line;
            let scope = self.scope.clone();
            self.outline.imports.push(Import { scope, path, name, is_reexport, line });
        }
    }

    fn imports(&mut self, mut path: Vec<String>, tree: &syn::UseTree, item: &syn::ItemUse) {
        match tree {
            syn::UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.imports(path, &tree.tree, item);
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.imports(path.clone(), tree, item);
                }
            }
            syn::UseTree::Glob(_) => self.import(path, None, item),
            syn::UseTree::Name(tree) => {
                if tree.ident != "self" {
                    path.push(tree.ident.to_string());
                }
                let name = path.last().cloned();
                self.import(path, name, item);
            }
            syn::UseTree::Rename(tree) => {
                if tree.ident != "self" {
                    path.push(tree.ident.to_string());
                }
                self.import(path, Some(tree.rename.to_string()), item);
            }
        }
    }

    fn function(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let first = signature.fn_token.span.start().line;
        let last = body.brace_token.span.close().end().line;
        let name = signature.ident.to_string();
        let (owner, lines) = (self.owner.clone(), last + 1 - first);
        self.outline.functions.push(Function { owner, name, line: first, lines });
    }

    /// Paths in the tokens of a macro's call or definition.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let is = |at: usize, letter: char| matches!(tokens.get(at), Some(TokenTree::Punct(p)) if p.as_char() == letter);
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(first) => {
                    // A field or method, or the end of a path that begins with `::`.
                    let is_member = at > 0 && is(at - 1, '.') && !(at > 1 && is(at - 2, '.'));
                    let is_outside = at > 1 && is(at - 1, ':') && is(at - 2, ':');
                    let mut path = vec![first.to_string()];
                    while is(at + 1, ':') && is(at + 2, ':') {
                        let Some(TokenTree::Ident(next)) = tokens.get(at + 3) else { break };
                        path.push(next.to_string());
                        at += 3;
                    }
                    if !is_member && !is_outside {
                        self.mention(path, line_of(first));
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Identifiers in the call of a macro where items stand.
    fn guesses(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => self.define(&ident, Kind::Guess),
                TokenTree::Group(group) if group.delimiter() != Delimiter::None => {
                    self.guesses(group.stream())
                }
                _ => {}
            }
        }
    }

    fn structure(&mut self, item: &syn::ItemStruct) {
        if self.in_test || self.depth > 0 {
            return;
        }
        let fields: Vec<_> =
            item.fields.iter().filter(|field| !field.attrs.iter().any(is_left_out)).collect();
        self.outline.structs.push(Struct {
            scope: self.scope.clone(),
            name: item.ident.to_string(),
            line: line_of(&item.ident),
            fields: fields.len(),
            fields_are_open: fields.iter().all(|field| !matches!(field.vis, syn::Visibility::Inherited)),
            derives: derives(&item.attrs),
        });
    }

    fn inherent(&mut self, item: &syn::ItemImpl, path: &syn::Path) {
        let methods: Vec<_> = item
            .items
            .iter()
            .filter(|item| !impl_item_attributes(item).iter().any(is_left_out))
            .filter_map(|item| if let syn::ImplItem::Fn(function) = item { Some(function) } else { None })
            .collect();
        let mutates = methods.iter().any(|method| match method.sig.inputs.first() {
            Some(syn::FnArg::Receiver(receiver)) => {
                matches!(receiver.kind, syn::ReceiverKind::Reference(_, _, Some(_)))
            }
            _ => false,
        });
        self.outline.inherents.push(Inherent {
            scope: self.scope.clone(),
            path: segments(path),
            line: item.impl_token.span.start().line,
            methods: methods.len(),
            mutates,
        });
    }

    fn module(&mut self, item: &syn::ItemMod) {
        let mut path = self.scope.clone();
        path.push(item.ident.to_string());
        let is_inline = item.content.is_some();
        self.outline.modules.push(Module { path: path.clone(), in_test: self.in_test, is_inline });
        if let Some((_, items)) = &item.content {
            let outer = std::mem::replace(&mut self.scope, path);
            items.iter().for_each(|item| self.visit_item(item));
            self.scope = outer;
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        self.within(item_attributes(item), |reader| visit::visit_item(reader, item));
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            self.imports(Vec::new(), &item.tree, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.module(item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.define(&item.sig.ident, Kind::Other);
        self.function(&item.sig, &item.block);
        self.depth += 1;
        visit::visit_item_fn(self, item);
        self.depth -= 1;
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let path = type_path(&item.self_ty);
        if let (None, Some(path), false) = (&item.trait_, path, self.in_test) {
            self.inherent(item, path);
        }
        let owner = path.and_then(|path| segments(path).pop());
        self.within_owner(owner, |reader| visit::visit_item_impl(reader, item));
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        self.within(impl_item_attributes(item), |reader| visit::visit_impl_item(reader, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
        self.depth += 1;
        visit::visit_impl_item_fn(self, item);
        self.depth -= 1;
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.define(&item.ident, Kind::Type);
        let owner = Some(item.ident.to_string());
        self.within_owner(owner, |reader| visit::visit_item_trait(reader, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.function(&item.sig, body);
        }
        self.depth += 1;
        self.within(&item.attrs, |reader| visit::visit_trait_item_fn(reader, item));
        self.depth -= 1;
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.define(&item.ident, Kind::Type);
        self.structure(item);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.define(&item.ident, Kind::Type);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.define(&item.ident, Kind::Type);
        visit::visit_item_union(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.define(&item.ident, Kind::Type);
        visit::visit_item_type(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.define(&item.ident, Kind::Other);
        visit::visit_item_const(self, item);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.define(&item.ident, Kind::Other);
        visit::visit_item_static(self, item);
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        match &item.ident {
            Some(ident) => self.define(ident, Kind::Other),
            None => self.guesses(item.mac.tokens.clone()),
        }
        visit::visit_item_macro(self, item);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        self.within(&field.attrs, |reader| visit::visit_field(reader, field));
    }

    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        self.within(&field.attrs, |reader| visit::visit_field_value(reader, field));
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.within(&variant.attrs, |reader| visit::visit_variant(reader, variant));
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        self.within(&arm.attrs, |reader| visit::visit_arm(reader, arm));
    }

    fn visit_stmt(&mut self, statement: &'ast syn::Stmt) {
        self.within(statement_attributes(statement), |reader| visit::visit_stmt(reader, statement));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.mention(segments(path), line_of(&path.segments[0].ident));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        visit::visit_macro(self, call);
        self.tokens(call.tokens.clone());
    }

    // Neither depends on the code that it names.
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

#[test]
fn an_outline_leaves_tests_out() {
    let outline = of(
        "a.rs",
        "use crate::a::{self, B as C};\n#[cfg(all(test, not(loom)))]\nuse crate::d::E;\npub use f::*;\n\
         #[cfg(not(loom))]\nmod g;\n#[cfg(test)]\nmod tests;\n\
         impl H {\n  fn i(&mut self) {\n    assert!(x.y(j::k, self.l));\n    #[cfg(test)]\n    n::o()?;\n    #[cfg(test)]\n    n.p = q::r;\n  }\n  #[cfg(test)]\n  fn m() {}\n}\n",
    );
    let imports: Vec<_> =
        outline.imports.iter().map(|import| (import.path.join("::"), import.name.as_deref())).collect();
    let expected = [("crate::a", Some("a")), ("crate::a::B", Some("C")), ("f", None)];
    assert_eq!(imports, expected.map(|(path, name)| (path.to_owned(), name)));
    let modules: Vec<_> =
        outline.modules.iter().map(|module| (module.path.join("::"), module.in_test)).collect();
    assert_eq!(modules, [("g".to_owned(), false), ("tests".to_owned(), true)]);
    let mentions: Vec<_> = outline.mentions.iter().map(|mention| mention.path.join("::")).collect();
    assert_eq!(mentions, ["H", "assert", "x", "j::k", "self"]);
    let inherent = &outline.inherents[0];
    assert_eq!((inherent.line, inherent.methods, inherent.mutates), (9, 1, true));
    let lengths: Vec<_> =
        outline.functions.iter().map(|function| (function.name.as_str(), function.lines)).collect();
    assert_eq!(lengths, [("i", 7), ("m", 1)]);
}
