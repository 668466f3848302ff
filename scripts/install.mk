# SPDX-License-Identifier: BSD-2-Clause
# make install and make uninstall: PREFIX (default /usr/local), DESTDIR for packagers.
# Units and examples name the real paths, so they are written at installation.

SBINDIR    = $(PREFIX)/sbin
BINDIR     = $(PREFIX)/bin
LIBDIR     = $(PREFIX)/lib
XKVLIBDIR  = $(PREFIX)/lib/xkv
INCLUDEDIR = $(PREFIX)/include
MANDIR     = $(PREFIX)/share/man
DATADIR    = $(PREFIX)/share
BASHDIR    = $(DATADIR)/bash-completion/completions
DOCDIR     = $(DATADIR)/doc/xkv
UNITDIR    = $(PREFIX)/lib/systemd/system
SYSUSERS   = $(PREFIX)/lib/sysusers.d/xkv.conf
# A program in /usr is configured in /etc, one in /usr/local too: that is where administrators look.
SYSCONFDIR = /etc

SO_VERSION := $(VERSION)
SO_NAME    := libxkv.so.0
MAN_PAGES   = $(wildcard docs/*.[1-8])
DOC_FILES   = README.md CHANGELOG.md CONTRIBUTING.md LICENSE \
	      $(wildcard docs/*.md docs/figures/*.svg docs/figures/*.md \
			docs/figures/*.png)
D           = $(DESTDIR)

# at INPUT OUTPUT MODE: installs a file with its @PLACES@ filled in
at = sed -e 's|@DATADIR@|$(DATADIR)|g' \
	-e 's|@SBINDIR@|$(SBINDIR)|g' -e 's|@BINDIR@|$(BINDIR)|g' -e 's|@LIBDIR@|$(LIBDIR)|g' \
	-e 's|@XKVLIBDIR@|$(XKVLIBDIR)|g' \
	-e 's|@INCLUDEDIR@|$(INCLUDEDIR)|g' -e 's|@PREFIX@|$(PREFIX)|g' \
	-e 's|@SYSCONFDIR@|$(SYSCONFDIR)|g' -e 's|@VERSION@|$(VERSION)|g' $(1) > $(BUILD)/.at.tmp && \
	$(INSTALL) -D -m $(3) $(BUILD)/.at.tmp "$(D)$(2)" && rm -f $(BUILD)/.at.tmp

install: all
	$(INSTALL) -D -m 755 $(BUILD)/xkvd "$(D)$(SBINDIR)/xkvd"
	$(INSTALL) -D -m 755 $(BUILD)/xkv "$(D)$(BINDIR)/xkv"
	$(INSTALL) -D -m 755 $(BUILD)/xkv-bench "$(D)$(BINDIR)/xkv-bench"
	$(INSTALL) -D -m 755 scripts/xkv-snapshot "$(D)$(BINDIR)/xkv-snapshot"
	$(INSTALL) -D -m 644 $(BUILD)/libxkv.a "$(D)$(LIBDIR)/libxkv.a"
	$(INSTALL) -D -m 755 $(BUILD)/libxkv.so "$(D)$(LIBDIR)/libxkv.so.$(SO_VERSION)"
	ln -sf libxkv.so.$(SO_VERSION) "$(D)$(LIBDIR)/$(SO_NAME)"
	ln -sf $(SO_NAME) "$(D)$(LIBDIR)/libxkv.so"
	$(INSTALL) -D -m 644 client/xkv.h "$(D)$(INCLUDEDIR)/xkv.h"
	$(INSTALL) -D -m 644 $(BUILD)/xkv.bpf.o "$(D)$(XKVLIBDIR)/xkv.bpf.o"
	$(call at,scripts/attach.sh,$(XKVLIBDIR)/attach.sh,755)
	$(INSTALL) -D -m 644 scripts/lib.sh "$(D)$(XKVLIBDIR)/lib.sh"
	$(call at,scripts/libxkv.pc,$(LIBDIR)/pkgconfig/libxkv.pc,644)
	$(call at,scripts/xkvd.service,$(UNITDIR)/xkvd.service,644)
	$(call at,scripts/xkv-snapshot.service,$(UNITDIR)/xkv-snapshot.service,644)
	$(call at,scripts/xkv-snapshot.timer,$(UNITDIR)/xkv-snapshot.timer,644)
	$(call at,scripts/xkv-snapshot.cron,$(DOCDIR)/examples/xkv-snapshot.cron,644)
	$(call at,scripts/xkvd.conf,$(DOCDIR)/examples/xkvd.conf,644)
	[ -e "$(D)$(SYSCONFDIR)/xkv/xkvd.conf" ] || \
		$(INSTALL) -D -m 640 "$(D)$(DOCDIR)/examples/xkvd.conf" "$(D)$(SYSCONFDIR)/xkv/xkvd.conf"
	for file in dashboards/*; do \
		$(INSTALL) -D -m 644 $$file "$(D)$(DOCDIR)/$$file" || exit 1; done
	$(INSTALL) -D -m 644 scripts/xkv.sysusers "$(D)$(SYSUSERS)"
	$(INSTALL) -D -m 644 scripts/completion.bash "$(D)$(BASHDIR)/xkv"
	for name in xkvd xkv-bench xkv-snapshot; do \
		ln -sf xkv "$(D)$(BASHDIR)/$$name" || exit 1; done
	$(call at,scripts/_xkv,$(DATADIR)/zsh/site-functions/_xkv,644)
	for page in $(MAN_PAGES); do \
		$(INSTALL) -D -m 644 $$page "$(D)$(MANDIR)/man$${page##*.}/$${page##*/}" || exit 1; done
	for doc in $(wildcard $(DOC_FILES)); do \
		$(INSTALL) -D -m 644 $$doc "$(D)$(DOCDIR)/$$doc" || exit 1; done
	[ -n "$(DESTDIR)" ] || ldconfig

# Does not remove the configuration and the data.
uninstall:
	rm -f "$(D)$(SBINDIR)/xkvd" "$(D)$(BINDIR)/xkv" "$(D)$(BINDIR)/xkv-bench" "$(D)$(BINDIR)/xkv-snapshot"
	rm -f "$(D)$(LIBDIR)/libxkv.a" "$(D)$(LIBDIR)/libxkv.so" "$(D)$(LIBDIR)/$(SO_NAME)" \
		"$(D)$(LIBDIR)/libxkv.so.$(SO_VERSION)" "$(D)$(INCLUDEDIR)/xkv.h" \
		"$(D)$(LIBDIR)/pkgconfig/libxkv.pc"
	rm -f "$(D)$(UNITDIR)/xkvd.service" "$(D)$(UNITDIR)/xkv-snapshot.service" \
		"$(D)$(UNITDIR)/xkv-snapshot.timer" "$(D)$(SYSUSERS)"
	rm -f $(foreach page,$(MAN_PAGES),"$(D)$(MANDIR)/man$(subst .,,$(suffix $(page)))/$(notdir $(page))")
	rm -f $(foreach name,xkv xkvd xkv-bench xkv-snapshot,"$(D)$(BASHDIR)/$(name)") \
		"$(D)$(DATADIR)/zsh/site-functions/_xkv"
	rm -rf "$(D)$(XKVLIBDIR)" "$(D)$(DOCDIR)"
	[ -n "$(DESTDIR)" ] || ldconfig
