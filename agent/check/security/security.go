// Package security audits a running node: what of the CIS benchmark's items for kubelets applies to it, and who may
// read and write what it has made. Each deviation says what to do.
package security

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

// Status is what became of an item.
type Status string

const (
	// OK is as it should be.
	OK Status = "ok"
	// Advice would be better otherwise, and is somebody's decision.
	Advice Status = "advice"
	// Deviation is not as it should be.
	Deviation Status = "deviation"
	// Unknown could not be found out.
	Unknown Status = "unknown"
)

// Item is one row of the audit.
type Item struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Found  string `json:"found"`
	Do     string `json:"do,omitempty"` // only when it is not ok
}

// Report is every item, in the order they are shown.
type Report struct {
	Secure bool   `json:"secure"`
	Items  []Item `json:"items"`
}

// Config is the node.
type Config struct {
	RunDir string
	HTTP   *http.Client // of the agent's socket
	// Proc has the settings of the kernel; "" is /proc/sys.
	Proc string
	// UID owns what the node makes; root's is 0.
	UID uint32
}

// ErrDeviates is the error of a node that deviates; the report was printed already.
var ErrDeviates = errors.New("the node deviates from what is secure")

// patience is how long the agent, and its ports, may take to answer.
const patience = 10 * time.Second

// maxSettings is how much is read of the agent's settings, in bytes.
const maxSettings = 4 << 20

// Run audits the node. It fails when no agent says what its settings are.
func Run(ctx context.Context, c Config) (Report, error) {
	if c.Proc == "" {
		c.Proc = "/proc/sys"
	}
	s, err := ask(ctx, c.HTTP)
	if err != nil {
		return Report{}, err
	}
	var r Report
	for _, list := range [][]Item{settingItems(s), c.portItems(ctx, s), c.kernelItems(), c.fileItems(s), c.secretItems(s)} {
		r.Items = append(r.Items, list...)
	}
	r.Secure = true
	for i := range r.Items {
		item := &r.Items[i]
		if item.Status == OK {
			item.Do = ""
		}
		r.Secure = r.Secure && item.Status != Deviation && item.Status != Unknown
	}
	return r, nil
}

// settings are the agent's, by the names of the KubeletConfiguration; berth's own are below berth.
type settings map[string]any

func ask(ctx context.Context, c *http.Client) (settings, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://berth/configz", nil)
	if err != nil {
		return nil, fmt.Errorf("ask the agent for its settings: %w", err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the agent for its settings: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask the agent for its settings: it answers %s", resp.Status)
	}
	var body struct {
		Kubelet settings `json:"kubeletconfig"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxSettings)).Decode(&body); err != nil {
		return nil, fmt.Errorf("read the agent's settings: %w", err)
	}
	return body.Kubelet, nil
}

// at is the setting of a path; nil when there is none.
func (s settings) at(path string) any {
	var v any = map[string]any(s)
	for key := range strings.SplitSeq(path, ".") {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[key]
	}
	return v
}

func (s settings) text(path string) string { t, _ := s.at(path).(string); return t }

func (s settings) yes(path string) bool { b, _ := s.at(path).(bool); return b }

func (s settings) number(path string) int { n, _ := s.at(path).(float64); return int(n) }

func (s settings) list(path string) []string {
	var out []string
	all, _ := s.at(path).([]any)
	for _, one := range all {
		out = append(out, fmt.Sprint(one))
	}
	return out
}

// below is a path in one of the node's directories.
func (s settings) below(dir string, names ...string) string {
	return filepath.Join(append([]string{s.text(dir)}, names...)...)
}

// Print writes the table, then what is to be done, and the verdict.
func (r Report) Print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprintln(tw, "ITEM\tSTATUS\tFOUND")
	for _, i := range r.Items {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", i.Name, i.Status, i.Found)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	var b strings.Builder
	b.WriteString("\n")
	for _, i := range r.Items {
		if i.Do != "" {
			fmt.Fprintf(&b, "%s (%s): %s\n", i.Name, i.Status, i.Do)
		}
	}
	verdict := "This node is as it should be."
	if !r.Secure {
		verdict = "This node deviates from what is secure."
	}
	if _, err := io.WriteString(w, b.String()+verdict+"\n"); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
