"""SGLang's dialect of `proxy/sim`."""
