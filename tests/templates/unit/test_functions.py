"""The functions of templates: what they return, and how values are printed."""

import pytest

from corral.templates import TemplateFailed, execute, parse
from corral.templates.template_data import data_for

DATA = {
    "Input": " Hi <b> & é\n",
    "SystemPrompt": "get_the_thing done",
    "Metadata": {"k": "v"},
    "Functions": [
        {"name": "f", "parameters": {"z": 1500.0, "a": 0.1, "big": 12345678, "deep": [1, None, {"x": True}]}}
    ],
}


def rendered(expression: str) -> str:
    return execute(parse("{{" + expression + "}}"), data_for("chat", DATA))


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ('eq "a" "b" "a"', "true"),
        ("eq nil nil", "true"),
        ('eq .Metadata.zz "a"', "false"),
        ("ne 1 2", "true"),
        ('print (lt 1 2) (le 2 2) (gt "b" "a") (ge 1.5 2.5)', "true true true false"),
        ("eq .Functions nil", "false"),
        ('len "é"', "2"),
        ("len .Metadata", "1"),
        ("slice (list 1 2 3) 1", "[2 3]"),
        ("slice (list 1 2 3) 0 2", "[1 2]"),
        ('print 1 2 "a" 3 nil true', "1 2a3 <nil> true"),
        ('println "a" 1', "a 1\n"),
        ('trim "\u00a0 a \u3000"', "a"),
        ('trimAll "-*" "*-a-b-*"', "a-b"),
        ('trimPrefix "a" "aab"', "ab"),
        ('trimSuffix "b" "abb"', "ab"),
        ('upper "straße é"', "STRAßE É"),
        ('lower "ÀΣ"', "àσ"),
        ("title .SystemPrompt", "Get_the_thing Done"),
        ('title "don\'t do-it"', "Don'T Do-It"),
        ('replace "_" "-" .SystemPrompt', "get-the-thing done"),
        ('contains "the" .SystemPrompt', "true"),
        ('hasPrefix "get" .SystemPrompt', "true"),
        ('hasSuffix "get" .SystemPrompt', "false"),
        ('default "d" ""', "d"),
        ('default "d" 0', "d"),
        ('default "d" "x"', "x"),
        ('coalesce "" 0 nil "z"', "z"),
        ('ternary "y" "n" (eq 1 1)', "y"),
        ('join ", " (list "a" 1 nil true)', "a, 1, true"),
        ('splitList "," "a,b," | len', "3"),
        ("list 1 nil `a`", "[1 <nil> a]"),
        ('dict "b" 1 "a" (list 2)', "map[a:[2] b:1]"),
        ('get (dict "a" 1) "b"', ""),
        ('hasKey (dict "a" 1) "a"', "true"),
        ('sortAlpha (keys (dict "b" 1 "a" 2))', "[a b]"),
        ('values (dict "b" 1 "a" 2)', "[2 1]"),
        ("first (list 1 2)", "1"),
        ("last (list 1 2)", "2"),
        ("rest (list 1 2 3)", "[2 3]"),
        ("initial (list 1 2 3)", "[1 2]"),
        ("first (list)", "<no value>"),
        ("append (list 1) 2", "[1 2]"),
        ("reverse (list 1 2)", "[2 1]"),
        ("concat (list 1) (list 2)", "[1 2]"),
        ("has 2 (list 1 2)", "true"),
        ("has (add 1 1) (list 1 2)", "false"),
        ("until 3", "[0 1 2]"),
        ("untilStep 5 0 -2", "[5 3 1]"),
        ("add 1 2.9 `3`", "6"),
        ("add1 -1", "0"),
        ("sub 1 3", "-2"),
        ("mul 2 3 4", "24"),
        ("mul 9223372036854775807 2", "-2"),
        ("div -7 2", "-3"),
        ("mod -7 2", "-1"),
        ("max 1 5 3", "5"),
        ('int "12"', "12"),
        ('int "x"', "0"),
        ("toString 1.50", "1.5"),
        ('quote "a\\"\\n" 1 nil', '"a\\"\\n" "1"'),
        ('squote "a" 1', "'a' '1'"),
        ('indent 2 "a\\nb"', "  a\n  b"),
        ('nindent 2 "a\\nb"', "\n  a\n  b"),
        ('repeat 3 "ab"', "ababab"),
        ('trunc 2 "abc"', "ab"),
        ('trunc -2 "abc"', "bc"),
        ('b64enc "aé"', "YcOp"),
        ("empty .Functions", "false"),
        ("kindOf .Functions", "slice"),
        ('kindIs "string" .Input', "true"),
        ("toJson .Input", '" Hi \\u003cb\\u003e \\u0026 é\\n"'),
        ("toRawJson .Input", '" Hi <b> & é\\n"'),
        ('toJson "\\x00\\u2028\\x7f\\b\\"\\\\"', '"\\u0000\\u2028\x7f\\b\\"\\\\"'),
        ("toJson .Metadata", '{"k":"v"}'),
        ("toJson .Instruction", '""'),
        ("toJson nil", "null"),
        (
            "toJson .Functions",
            '[{"name":"f","description":"","strict":false,'
            '"parameters":{"a":0.1,"big":12345678,"deep":[1,null,{"x":true}],"z":1500}}]',
        ),
        ("(index .Functions 0).Parameters", "map[a:0.1 big:1.2345678e+07 deep:[1 <nil> map[x:true]] z:1500]"),
        ('toPrettyJson (dict "a" (list) "b" (list 1))', '{\n  "a": [],\n  "b": [\n    1\n  ]\n}'),
        ('toJson (fromJson "[1e21, 1e20, 0.000001, 1e-7, 100]")', "[1e+21,100000000000000000000,0.000001,1e-7,100]"),
        ('fromJson "no json"', "<no value>"),
        ('(fromJson "{\\"a\\": {\\"b\\": [1]}}").a.b', "[1]"),
    ],
)
def test_a_function_returns_what_go_and_sprig_do(expression: str, text: str) -> None:
    assert rendered(expression) == text


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ('printf "%s %v %d" "a" "b" 3', "a b 3"),
        ('printf "%5d|%-5d|%05d|%+d|% d" 42 42 42 42 42', "   42|42   |00042|+42| 42"),
        ('printf "%6s|%-6s|%.2s" "é" "é" "éab"', "     é|é     |éa"),
        ('printf "%q %q" "a\\"\\u200b" (list "x" 65)', '"a\\"\\u200b" ["x" \'A\']'),
        ('printf "%t %5t" true false', "true false"),
        ('printf "%f %.1f %8.2f|%g %e" 1.5 2.25 3.14159 1e6 1234.5', "1.500000 2.2     3.14|1e+06 1.234500e+03"),
        ('printf "%x %X %x %o %b %c" 255 "hi" -16 8 5 233', "ff 6869 -10 10 101 é"),
        ('printf "%.3d|%6.2d|%.0d|%05s" 7 -3 0 "a"', "007|   -03||0000a"),
        ('printf "%v %v %v" nil (list 1 nil) (dict "a" 1)', "<nil> [1 <nil>] map[a:1]"),
        ('printf "%d %s" "a" 1', "%!d(string=a) %!s(int=1)"),
        ('printf "%d %d" 1', "1 %!d(MISSING)"),
        ('printf "%d" 1 2', "1%!(EXTRA int=2)"),
        ('printf "100%% %"', "100% %!(NOVERB)"),
        ('printf "%d" (list 1 2)', "[1 2]"),
    ],
)
def test_printf_formats_plain_values_as_go_does(expression: str, text: str) -> None:
    assert rendered(expression) == text


@pytest.mark.parametrize(
    "expression",
    [
        "div 1 0",
        "first `a`",
        "first nil",
        "slice (list 1) 5",
        "slice `abc` 1",
        "repeat -1 `a`",
        "int `08`",
        "printf (print `%` `T`) 1",
        "printf `x` (list 1)",
        "lt (list 1) (list 2)",
        "eq (list 1) (list 1)",
        "get .Metadata `k`",
        "substr 3 1 `abc`",
        "set nil `a` 1",
    ],
)
def test_what_a_function_cannot_do_fails(expression: str) -> None:
    with pytest.raises(TemplateFailed):
        rendered(expression)


def test_bytes_of_a_character_come_together_again() -> None:
    assert rendered('print (trunc 1 "é") "|" (trunc 1 "é") (trunc -1 "é")') == "\ufffd|é"
