package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berth-node/berth/control/pki"
	"github.com/berth-node/berth/control/rotation"
)

// What follows is what commands tell programs (-o json), and write as tables for people.

// table has fn write rows of cells, which are aligned.
func table(out io.Writer, fn func(w io.Writer)) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fn(w)
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	return nil
}

// cell keeps a text in its cell.
func cell(s string) string { return strings.NewReplacer("\n", "^J", "\t", "^I").Replace(s) }

// shownCert is a certificate.
type shownCert struct {
	Name      string    `json:"name"`
	File      string    `json:"file"`
	NotAfter  time.Time `json:"notAfter"`
	LeftDays  int       `json:"leftDays"` // below 0: it has ended
	Authority string    `json:"authority,omitempty"`
	Subject   string    `json:"subject"`
}

type shownCerts struct {
	Certificates []shownCert `json:"certificates"`
}

func certsShown(all []pki.Entry, now time.Time) (out shownCerts, errs []error) {
	for _, e := range all {
		if e.Err != nil {
			errs = append(errs, fmt.Errorf("read %s: %w", e.File, e.Err))
			continue
		}
		out.Certificates = append(out.Certificates, shownCert{
			e.Name, e.File, e.NotAfter.UTC(), int(e.NotAfter.Sub(now).Hours() / 24), e.Authority, e.Subject,
		})
	}
	return out, errs
}

func (s shownCerts) table(out io.Writer) error {
	if len(s.Certificates) == 0 {
		return nil
	}
	return table(out, func(w io.Writer) {
		fmt.Fprintln(w, "NAME\tENDS\tLEFT\tAUTHORITY\tSUBJECT")
		for _, c := range s.Certificates {
			fmt.Fprintf(w, "%s\t%s\t%d days\t%s\t%s\n", c.Name, c.NotAfter.Format(time.RFC3339), c.LeftDays, cmp.Or(c.Authority, "-"), c.Subject)
		}
	})
}

// shownStore is how etcd is. IDs are as etcd writes them, in hexadecimal.
type shownStore struct {
	Version    string   `json:"version"`
	SizeBytes  int64    `json:"sizeBytes"`
	InUseBytes int64    `json:"inUseBytes"`
	Revision   int64    `json:"revision"`
	Leader     string   `json:"leader"`
	RaftTerm   uint64   `json:"raftTerm"`
	Alarms     []string `json:"alarms"`
}

func storeShown(s *clientv3.StatusResponse) shownStore {
	return shownStore{s.Version, s.DbSize, s.DbSizeInUse, s.Header.Revision, fmt.Sprintf("%x", s.Leader), s.RaftTerm, s.Errors}
}

func (s shownStore) table(out io.Writer) error {
	return table(out, func(w io.Writer) {
		fmt.Fprintf(w, "version\t%s\nsize\t%d bytes\nin use\t%d bytes\nrevision\t%d\nleader\t%s\nraft term\t%d\n",
			s.Version, s.SizeBytes, s.InUseBytes, s.Revision, s.Leader, s.RaftTerm)
		for _, a := range s.Alarms {
			fmt.Fprintf(w, "alarm\t%s\n", cell(a))
		}
	})
}

// shownMember is a member of etcd. One that has not begun yet has no name.
type shownMember struct {
	ID       string   `json:"id"`
	Name     string   `json:"name"`
	PeerURLs []string `json:"peerURLs"`
	Learner  bool     `json:"learner"`
}

type shownMembers struct {
	Members []shownMember `json:"members"`
}

func membersShown(all *clientv3.MemberListResponse) (out shownMembers) {
	for _, m := range all.Members {
		out.Members = append(out.Members, shownMember{fmt.Sprintf("%x", m.ID), m.Name, m.PeerURLs, m.IsLearner})
	}
	return out
}

func (s shownMembers) table(out io.Writer) error {
	return table(out, func(w io.Writer) {
		fmt.Fprintln(w, "ID\tNAME\tADDRESS\tLEARNER")
		for _, m := range s.Members {
			fmt.Fprintf(w, "%s\t%s\t%s\t%t\n", m.ID, cmp.Or(cell(m.Name), "-"), cell(strings.Join(m.PeerURLs, ",")), m.Learner)
		}
	})
}

// shownRotation is how far the rotation of an authority is, or of the key of tokens. Who came last when with what the
// one before has signed is in SeenAt.
type shownRotation struct {
	Authority string               `json:"authority"`
	Phase     string               `json:"phase"`
	New       string               `json:"new"`
	Before    string               `json:"before"`
	Behind    []string             `json:"membersBehind"`
	SeenAt    map[string]time.Time `json:"seenAt"`
}

type shownRotations struct {
	Rotations []shownRotation `json:"rotations"`
}

func rotationsShown(all []rotation.Progress) (out shownRotations) {
	for _, p := range all {
		seen := map[string]time.Time{}
		for who, at := range p.Seen {
			seen[who] = at.UTC()
		}
		out.Rotations = append(out.Rotations, shownRotation{p.Name, string(p.Phase), p.Next, p.Before, p.Behind, seen})
	}
	return out
}

func (s shownRotations) table(out io.Writer) error {
	return table(out, func(w io.Writer) {
		fmt.Fprintln(w, "AUTHORITY\tPHASE\tNEW\tBEFORE\tMEMBERS BEHIND\tSTILL NEED THE ONE BEFORE")
		for _, r := range s.Rotations {
			var users []string
			for _, who := range slices.Sorted(maps.Keys(r.SeenAt)) {
				users = append(users, fmt.Sprintf("%s (%s)", who, r.SeenAt[who].Format(time.RFC3339)))
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Authority, r.Phase, cmp.Or(fmt.Sprintf("%.12s", r.New), "-"),
				cmp.Or(fmt.Sprintf("%.12s", r.Before), "-"), cell(cmp.Or(strings.Join(r.Behind, "; "), "none")),
				cell(cmp.Or(strings.Join(users, ", "), "nobody")))
		}
	})
}

// shownToken is a token of which the secret is not told.
type shownToken struct {
	ID     string     `json:"id"`
	For    string     `json:"for"`       // node or member
	Ends   *time.Time `json:"expiresAt"` // null: never
	About  string     `json:"description"`
	Usable bool       `json:"usable"` // false: it has ended, or nobody can come with it

	unread bool // when it ends
}

type shownTokens struct {
	Tokens []shownToken `json:"tokens"`
}

func (s shownTokens) table(out io.Writer) error {
	if len(s.Tokens) == 0 {
		_, err := fmt.Fprintln(out, "No tokens.")
		return err
	}
	return table(out, func(w io.Writer) {
		fmt.Fprintln(w, "ID\tFOR\tENDS\tUSABLE\tDESCRIPTION")
		for _, t := range s.Tokens {
			ends := "never"
			switch {
			case t.Ends != nil:
				ends = t.Ends.UTC().Format(time.RFC3339)
			case t.unread:
				ends = "unknown"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%t\t%s\n", cell(t.ID), t.For, ends, t.Usable, cmp.Or(cell(t.About), "-"))
		}
	})
}
