package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

const ipForward = "/proc/sys/net/ipv4/ip_forward"

// netfilter is the machine's packet filter as it was before a run: the peers' plugins leave chains behind for good.
type netfilter struct {
	rules   []byte
	tables  []string
	forward []byte
}

func saveNetfilter() (n netfilter, err error) {
	if n.tables, err = nftTables(); err != nil {
		return n, fmt.Errorf("list the packet filter's tables: %w", err)
	}
	if n.rules, err = exec.Command("iptables-save").Output(); err != nil {
		return n, fmt.Errorf("save the packet filter's rules: %w", err)
	}
	n.forward, err = os.ReadFile(ipForward)
	return n, err
}

// restore puts everything back as it was.
func (n netfilter) restore() error {
	tables, err := nftTables()
	if err != nil {
		return err
	}
	var errs []error
	for _, t := range tables {
		if !slices.Contains(n.tables, t) {
			errs = append(errs, exec.Command("nft", append([]string{"delete"}, strings.Fields(t)...)...).Run())
		}
	}
	restore := exec.Command("iptables-restore")
	restore.Stdin = bytes.NewReader(n.rules)
	errs = append(errs, restore.Run(), os.WriteFile(ipForward, n.forward, 0o644))
	return errors.Join(errs...)
}

// nftTables lists the tables as nft names them: "table ip nat".
func nftTables() ([]string, error) {
	out, err := exec.Command("nft", "list", "tables").Output()
	if err != nil {
		return nil, err
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' }), nil
}
