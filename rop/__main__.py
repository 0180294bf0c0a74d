"""`python -m rop` is the command `rop`."""

try:
    from rop.cli import main
except KeyboardInterrupt:
    raise SystemExit(130) from None

raise SystemExit(main())
