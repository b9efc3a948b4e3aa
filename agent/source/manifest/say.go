package manifest

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

var yamlLine = regexp.MustCompile(`line (\d+): `)

// yamlErrors splits the error of the YAML parser into one message an error, with lines of the file.
func (p position) yamlErrors(err error) []string {
	text := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	text = strings.TrimPrefix(text, "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n")
	var out []string
	for l := range strings.SplitSeq(text, "\n") {
		l = strings.TrimSpace(l)
		line := p.line
		if m := yamlLine.FindStringSubmatchIndex(l); m != nil {
			n, _ := strconv.Atoi(l[m[2]:m[3]])
			line += n - 1
			l = l[:m[0]] + l[m[1]:]
		}
		if strings.Contains(l, "already set in map") {
			l = strings.Replace(l, "key ", "duplicate field ", 1)
			l = strings.Replace(l, "already set in map", "(the last one counts)", 1)
		} else if !strings.HasPrefix(l, "document ") {
			l = "invalid YAML: " + l
		}
		out = append(out, Shorten(fmt.Sprintf("line %d: %s", line, l)))
		if len(out) == maxMessages {
			break
		}
	}
	return out
}

var strictPath = regexp.MustCompile(`^(unknown|duplicate) field "(.*)"$`)

// strict words what strict decoding found. The pod runs all the same.
func (p position) strict(err error) string {
	m := strictPath.FindStringSubmatch(err.Error())
	if m == nil {
		return p.say("", err.Error())
	}
	if m[1] == "duplicate" {
		return p.say(m[2], fmt.Sprintf("duplicate field %q (the last one counts)", m[2]))
	}
	return p.say(m[2], fmt.Sprintf("unknown field %q (ignored)", m[2]))
}

func (p position) sayAll(errs field.ErrorList) []string {
	var out []string
	for i, e := range errs {
		if i == maxMessages {
			return append(out, fmt.Sprintf("and %d more", len(errs)-i))
		}
		out = append(out, p.say(e.Field, e.Error()))
	}
	return out
}

// say puts the line of a field before a message.
func (p position) say(path, message string) string {
	return Shorten(fmt.Sprintf("line %d: %s", p.lineOf(path), message))
}

// Shorten bounds what is said of a manifest.
func Shorten(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage*3/4], "") + " ... " + strings.ToValidUTF8(s[len(s)-maxMessage/4:], "")
}
