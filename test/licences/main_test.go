package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTell(t *testing.T) {
	for text, want := range map[string]string{
		"Apache License\n  Version 2.0, January 2004":                                          "Apache-2.0",
		"Permission is hereby\n granted, free of charge, to any person":                        "MIT",
		"Redistribution and use in source and binary forms ... to endorse or promote products": "BSD-3-Clause",
		"Redistribution and use in source and binary forms, with or without":                   "BSD-2-Clause",
		"GNU GENERAL PUBLIC LICENSE Version 3":                                                 "",
		"":                                                                                     "",
		"Permission to use, copy, modify, and/or distribute this software for any purpose":           "ISC",
		"Mozilla Public License Version 2.0":                                                         "MPL-2.0",
		"This is free and unencumbered software released into the public domain.":                    "Unlicense",
		"Permission to use, copy, modify, and distribute this software for any purpose with or with": "ISC",
	} {
		if has := tell(text); has != want {
			t.Errorf("%q is %q, should be %q", text, has, want)
		}
	}
}

func TestLicenceOf(t *testing.T) {
	dir := t.TempDir()
	if _, err := licenceOf(dir); err == nil {
		t.Error("nothing has a licence")
	}
	if _, err := licenceOf(filepath.Join(dir, "absent")); err == nil {
		t.Error("what is not there has a licence")
	}
	if err := os.WriteFile(filepath.Join(dir, "LICENSE.txt"), []byte("Permission is hereby granted, free of charge"), 0o600); err != nil {
		t.Fatal(err)
	}
	if name, err := licenceOf(dir); err != nil || name != "MIT" {
		t.Errorf("%q, %v", name, err)
	}
}
