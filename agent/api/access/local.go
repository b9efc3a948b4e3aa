package access

import (
	"context"
	"crypto/sha256"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
)

// Rule lets a user, or the members of a group, do something.
type Rule struct {
	User, Group  string   // one of them
	Subresources []string // "*" is all of them
	ReadOnly     bool     // get alone
}

// subresources are what a rule can name.
var subresources = []string{"*", "checkpoint", "configz", "healthz", "log", "metrics", "pods", "proxy", "stats"}

// ParseRule reads "user:NAME=WHAT,..." or "group:NAME=WHAT,...", where WHAT is a subresource of the node, or "*" for
// all, and "get:" before the list lets them only read.
func ParseRule(s string) (Rule, error) {
	const form = "must be user:NAME=WHAT,... or group:NAME=WHAT,..."
	i := strings.LastIndexByte(s, '=') // names may have one
	if i < 0 {
		return Rule{}, fmt.Errorf("%q: %s", s, form)
	}
	var r Rule
	kind, name, _ := strings.Cut(s[:i], ":")
	switch {
	case name == "":
		return r, fmt.Errorf("%q: %s", s, form)
	case kind == "user":
		r.User = name
	case kind == "group":
		r.Group = name
	default:
		return r, fmt.Errorf("%q: %s", s, form)
	}
	what, readOnly := strings.CutPrefix(s[i+1:], "get:")
	r.ReadOnly = readOnly
	for one := range strings.SplitSeq(what, ",") {
		if one = strings.TrimSpace(one); !slices.Contains(subresources, one) {
			return r, fmt.Errorf("%q: %q is none of %s", s, one, strings.Join(subresources, ", "))
		}
		r.Subresources = append(r.Subresources, one)
	}
	return r, nil
}

// Rules let do what one of them lets do, and nothing else.
type Rules []Rule

// Authorize implements [Authorizer].
func (rs Rules) Authorize(_ context.Context, u *User, want Attributes) (bool, string, error) {
	for _, r := range rs {
		who := r.User != "" && r.User == u.Name || r.Group != "" && slices.Contains(u.Groups, r.Group)
		what := slices.ContainsFunc(r.Subresources,
			func(s string) bool { return s == "*" || slices.Contains(want.Subresources, s) })
		if who && what && (!r.ReadOnly || want.Verb == "get") {
			return true, "", nil
		}
	}
	return false, "no rule of --api-allow lets them", nil
}

// Replaceable are rules that can be replaced while they are in use.
type Replaceable struct{ now atomic.Pointer[Rules] }

// NewReplaceable begins with some rules.
func NewReplaceable(r Rules) *Replaceable {
	out := &Replaceable{}
	out.Replace(r)
	return out
}

// Replace makes other rules hold from the next request on.
func (p *Replaceable) Replace(r Rules) { p.now.Store(&r) }

// Authorize implements [Authorizer].
func (p *Replaceable) Authorize(ctx context.Context, u *User, want Attributes) (bool, string, error) {
	return p.now.Load().Authorize(ctx, u, want)
}

// Tokens are bearer tokens of a file. They are kept as their hashes, so that how long it takes to find one tells
// nothing of it.
type Tokens map[[sha256.Size]byte]User

// ReadTokens reads a file of lines "token,user,uid" or "token,user,uid,"group1,group2"", as the API server's.
func ReadTokens(path string) (Tokens, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	if fi.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("read tokens: %s has mode %04o, so that others than its owner can read it; chmod 600 it", path,
			fi.Mode().Perm())
	}
	t, err := parseTokens(f)
	if err != nil {
		return nil, fmt.Errorf("read tokens of %s: %w", path, err)
	}
	return t, nil
}

func parseTokens(in io.Reader) (Tokens, error) {
	out := Tokens{}
	r := csv.NewReader(in)
	r.FieldsPerRecord, r.Comment, r.TrimLeadingSpace = -1, '#', true
	for {
		rec, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err // it names the line
		}
		line, _ := r.FieldPos(0)
		if len(rec) < 3 || len(rec) > 4 || rec[0] == "" || rec[1] == "" {
			return nil, fmt.Errorf(`line %d: must be token,user,uid or token,user,uid,"group1,group2"`, line)
		}
		u := User{Name: rec[1], UID: rec[2]}
		if len(rec) == 4 {
			for g := range strings.SplitSeq(rec[3], ",") {
				if g = strings.TrimSpace(g); g != "" {
					u.Groups = append(u.Groups, g)
				}
			}
		}
		sum := sha256.Sum256([]byte(rec[0]))
		if _, twice := out[sum]; twice {
			return nil, fmt.Errorf("line %d: this token is there twice", line)
		}
		out[sum] = u
	}
}

// TokenFile authenticates by the tokens that get returns.
type TokenFile struct{ Get func() Tokens }

// Authenticate implements [Authenticator].
func (t TokenFile) Authenticate(r *http.Request) (*User, error) {
	return byToken(r, func(token string) (*User, error) {
		if u, ok := t.Get()[sha256.Sum256([]byte(token))]; ok {
			return &u, nil
		}
		return nil, errors.New("unknown token")
	})
}
